// How many took how long, as bars on a logarithmic scale.
import { count, duration } from "/page/assets/words.js";

const FEWEST = 9; // bars less than that would be as wide as the chart is high
const MARKS = [1, 10, 60, 600, 3600, 36000, 86400, 604800];
const brief = (seconds) => duration(seconds).replace(/ 0+[a-z]$/, "");

export default {
  template: `
    <figure class="gy-hist" role="img" :aria-label="label">
      <div class="gy-hist-bars">
        <div v-for="bar in bars" class="gy-hist-bar" :title="bar.title"><div :style="{ height: bar.high + '%' }"></div></div>
      </div>
      <div class="gy-hist-marks" aria-hidden="true"><span v-for="mark in marks" :style="{ left: mark.at + '%' }">{{ mark.text }}</span></div>
    </figure>`,
  props: { label: String, edges: Array, counts: Array },
  computed: {
    // From the first bar that is not empty to the last.
    range() {
      const there = this.counts.map((many, n) => (many ? n : -1)).filter((n) => n >= 0);
      if (!there.length) return [0, this.counts.length - 1];
      const first = Math.max(0, there[0] - 1);
      return [first, Math.min(this.counts.length - 1, Math.max(there.at(-1) + 1, first + FEWEST))];
    },
    bars() {
      const [first, last] = this.range, most = Math.max(1, ...this.counts);
      return this.counts.slice(first, last + 1).map((many, n) => ({
        high: many ? Math.max(2, (100 * many) / most) : 0, title: `${count(many, "job")} ${this.between(first + n)}`,
      }));
    },
    marks() {
      const [first, last] = this.range, wide = last - first + 1;
      const places = this.edges.map((edge, n) => ({ edge, n: n + 1 })).filter(({ n }) => n > first && n <= last);
      const found = MARKS.map((mark) => {
        const near = places.reduce((best, place) => (Math.abs(Math.log(place.edge / mark)) < Math.abs(Math.log(best.edge / mark)) ? place : best), places[0]);
        return near && Math.abs(Math.log(near.edge / mark)) < 0.4 ? { at: (100 * (near.n - first)) / wide, text: brief(mark) } : null;
      });
      return found.filter(Boolean);
    },
  },
  methods: {
    between(place) {
      if (place === 0) return `took less than ${brief(this.edges[0])}`;
      if (place === this.edges.length) return `took ${brief(this.edges.at(-1))} or more`;
      return `took ${brief(this.edges[place - 1])} to ${brief(this.edges[place])}`;
    },
  },
};
