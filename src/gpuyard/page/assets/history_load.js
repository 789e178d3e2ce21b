// What the GPUs did in the time of the chart above, on the same axis: one metric, a strip for each GPU.
import { METRICS, TROUBLES, curve, numbers, said, troubles } from "/page/assets/recording.js";
import { MOST_POINTS, Recording, explained, inWords, nothing } from "/page/assets/recorded_base.js";
import { Strips } from "/page/assets/strips.js";
import { clock } from "/page/assets/words.js";

const USUAL = "utilization";
const SOON = 250; // milliseconds after which a span that somebody zooms into is asked for
const NOTHING = { at: [], mean: [], low: null, high: null };

export const Load = {
  mixins: [Recording],
  components: { Strips },
  // As the chart has them: `back` so many seconds up to now, or from `since` to `until`, or up to now.
  props: { back: Number, since: Number, until: Number },
  emits: ["metric"],
  template: `
    <section ref="root" class="gy-rec gy-load" aria-label="What the GPUs did">
      <div class="gy-rec-tools">
        <div class="gy-list-choices" role="group" aria-label="What the GPUs did">
          <button v-for="key in all" :key="key" type="button" class="gy-list-choice" :aria-pressed="show[0] === key ? 'true' : 'false'" @click="look(key)">{{ metrics[key].name }}</button>
        </div>
        <button type="button" class="gy-list-choice gy-rec-save" :disabled="!told" title="What is shown, as a file" @click="download('history-' + show[0])"><q-icon name="download" aria-hidden="true" />CSV</button>
      </div>
      <p class="gy-soft gy-rec-words" :class="{ 'gy-rec-problem': problem }" role="status">{{ problem || words }}</p>
      <strips v-show="told" ref="chart" class="gy-strips-bare" :key="show[0]" :metric="show[0]" :caption="metrics[show[0]].name" />
      <ul v-if="bother.length" class="gy-rec-troubles" aria-label="Troubles"><li v-for="line in bother" :key="line"><q-icon name="warning" aria-hidden="true" />{{ line }}</li></ul>
      <details v-if="table.length" class="gy-gantt-text">
        <summary>In numbers</summary>
        <table><thead><tr><th scope="col">GPU</th><th scope="col">{{ metrics[show[0]].name }}</th></tr></thead>
          <tbody><tr v-for="row in table" :key="row.key"><th scope="row">{{ row.key }}</th><td>{{ row.text }}</td></tr></tbody></table>
      </details>
    </section>`,
  created() {
    this.show = this.wanted([USUAL]).slice(0, 1);
    this.load(); // at once: it takes as long as what the chart above asks for
  },
  mounted() {
    this.$watch(() => [this.back, this.since, this.until].join(), () => {
      this.zoomed = this.axis = null;
      this.load();
    });
  },
  beforeUnmount() {
    clearTimeout(this.soon);
  },
  methods: {
    look(key) {
      this.show = [key];
      this.$emit("metric", key === USUAL ? "" : key);
      this.load();
    },
    /** Be as wide as the chart: this is its whole time, or a part that somebody zoomed into. */
    follow(from, to, zoomed) {
      const asked = this.zoomed?.join();
      this.axis = [from, to];
      this.zoomed = zoomed ? [from, to] : null;
      if (this.found) this.draw();
      if (this.zoomed?.join() === asked) return;
      clearTimeout(this.soon);
      this.soon = setTimeout(() => this.load(), SOON);
    },
    request() {
      const [from, to] = this.zoomed ?? [this.back ? Date.now() / 1000 - this.back : this.since, this.until];
      const iso = (at) => (at ? new Date(1000 * at).toISOString() : "");
      const points = Math.max(120, Math.min(MOST_POINTS, Math.round((this.$refs.root?.clientWidth ?? innerWidth) - 80)));
      return { path: "/recordings", query: { from: iso(from), to: iso(to), metrics: [...this.show, ...TROUBLES].join(), points } };
    },
    pause() {
      return this.until || this.zoomed ? 0 : Math.max(10, (this.found ? this.found.end - this.found.start : 0) / 400);
    },
    draw() {
      const [key] = this.show, [from, to] = this.axis ?? [this.found.start, this.found.end];
      const bother = troubles(this.found);
      const rows = this.found.gpus.map((gpu) => ({
        label: `GPU ${gpu.index}`, curves: [curve(gpu, key, this.found.period) ?? NOTHING], troubles: bother.filter((one) => one.gpu === gpu.index),
      }));
      const most = key === "memory_used" ? Math.max(...this.found.gpus.map((gpu) => gpu.memory_total ?? 0)) || undefined : undefined;
      if (rows.length) this.$refs.chart?.show({ from, to, most, rows });
      this.bother = said(bother);
      this.table = this.found.gpus.map((gpu, i) => ({ key: gpu.index, text: inWords(METRICS[key], numbers(rows[i].curves[0], from, to)) }));
      const first = Math.min(...rows.map((row) => row.curves[0].at[0] ?? Infinity));
      if (first === Infinity) this.words = nothing(this.found);
      else this.words = (first > from + 0.02 * (to - from) ? `Recorded since ${clock(first, Date.now() / 1000)}. ` : "") + explained(this.found);
      this.told = first !== Infinity;
    },
  },
};
