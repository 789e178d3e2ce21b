// What the GPUs did in the last minutes, hours or days, as recorded: the part of the overview that shows it.
//
// It asks the API by itself, once somebody gets to see it. What is looked at is in the address. Where the time is short, the
// samples that the overview is sent anyway go on where the recording ends.
import { METRICS, TROUBLES, curve, goneOn, numbers, said, spells, troubles } from "/page/assets/recording.js";
import { MOST_POINTS, Recording, explained, inWords, nothing, template } from "/page/assets/recorded_base.js";
import { Strips } from "/page/assets/strips.js";
import { clock } from "/page/assets/words.js";

const MINUTE = 60, HOUR = 3600, DAY = 86400;
const RANGES = [
  { key: "10m", name: "10 min", span: 10 * MINUTE, again: 15, live: 1 },
  { key: "1h", name: "1 h", span: HOUR, again: 30, live: 5 },
  { key: "6h", name: "6 h", span: 6 * HOUR, again: 60 },
  { key: "24h", name: "24 h", span: DAY, again: 120 },
  { key: "7d", name: "7 d", span: 7 * DAY, again: 600 },
  { key: "30d", name: "30 d", span: 30 * DAY, again: 1800 },
];
const USUAL = { range: "10m", show: "utilization,memory_used", gpu: "" };
const MANY = 16; // GPUs; of more, fewer values are asked for
const LIVE = { utilization: 1, memory_used: 2 ** 20, power: 1, temperature: 1 }; // what is told live, and in how much of the unit
const RARELY = 60; // seconds after which the recording is asked for where all that is shown is told live
const SOON = 15000; // milliseconds after which a job that began or ended is asked for
const NOTHING = { at: [], mean: [], low: null, high: null };

const HEAD = `
  <div class="gy-list-choices" role="group" aria-label="Time">
    <button v-for="one in ranges" :key="one.key" type="button" class="gy-list-choice" :aria-pressed="one.key === range ? 'true' : 'false'" @click="look({ range: one.key })">{{ one.name }}</button>
  </div>
  <label class="gy-rec-which"><span class="gy-hidden">Which GPU</span>
    <select :value="gpu" @change="look({ gpu: $event.target.value })">
      <option value="">All GPUs</option>
      <option v-for="one in gpus" :key="one.index" :value="String(one.index)">GPU {{ one.index }}</option>
    </select></label>`;

export const Recorded = {
  mixins: [Recording],
  components: { Strips },
  props: { gpus: Array, at: Array, curves: Object, beat: Number, now: Number },
  template: template(HEAD),
  data() {
    const given = new URLSearchParams(location.search);
    return {
      ranges: RANGES,
      range: RANGES.some(({ key }) => key === given.get("range")) ? given.get("range") : USUAL.range,
      gpu: this.gpus.some(({ index }) => String(index) === given.get("gpu")) ? given.get("gpu") : "",
    };
  },
  computed: {
    kind() {
      return RANGES.find(({ key }) => key === this.range);
    },
    chosen() {
      return this.gpu === "" ? this.gpus.map(({ index }) => index) : [Number(this.gpu)];
    },
    tenants() {
      return this.gpus.map((gpu) => gpu.jobs.map((job) => job.id).join()).join(";");
    },
    file() {
      return `${this.gpu === "" ? "gpus" : `gpu-${this.gpu}`}-${this.range}`;
    },
  },
  watch: {
    tenants() {
      this.soon ??= setTimeout(() => {
        this.soon = undefined;
        if (this.seen && this.kind.live && !document.hidden) this.load();
      }, SOON);
    },
    beat() {
      if (this.seen && this.found && this.kind.live && this.now - this.drawn >= this.kind.live) this.draw();
    },
  },
  beforeUnmount() {
    clearTimeout(this.soon);
  },
  created() {
    this.drawn = 0;
    this.show = this.wanted(USUAL.show.split(","));
  },
  methods: {
    /** Look at something else, and let the address say so. */
    look(what) {
      Object.assign(this, what);
      this.tellAddress({ range: this.range, show: this.show.join(), gpu: this.gpu }, USUAL);
      this.load();
    },
    request() {
      const points = Math.min(this.chosen.length > MANY ? 240 : MOST_POINTS, this.points(Math.min(2, this.show.length)));
      const from = new Date(1000 * (this.now - this.kind.span)).toISOString();
      return { path: "/recordings", query: { from, metrics: [...this.show, ...TROUBLES].join(), gpus: this.gpu, points } };
    },
    pause() {
      return this.kind.live && this.show.every((key) => LIVE[key]) ? RARELY : this.kind.again;
    },
    draw() {
      const began = performance.now();
      const to = Math.max(this.now, this.found.end), from = to - this.kind.span;
      const gpus = new Map(this.found.gpus.map((gpu) => [gpu.index, gpu]));
      const bother = troubles(this.found);
      const known = Object.fromEntries(this.show.map((key) => [key, this.chosen.map((index) => this.curve(gpus.get(index), index, key))]));
      const rows = (key) => this.chosen.map((index, i) => this.row(index, known[key][i], bother));
      this.$refs.charts?.forEach((chart) => chart.show({ from, to, most: this.most(chart.metric), rows: rows(chart.metric) }));
      this.bother = said(bother);
      this.table = this.chosen.map((index, i) => ({ key: index, cells: this.show.map((key) => inWords(METRICS[key], numbers(known[key][i], from, to))) }));
      this.words = this.sentence(from, Math.min(...Object.values(known).flat().map((one) => one?.at[0] ?? Infinity)));
      this.drawn = this.now + (20 * (performance.now() - began)) / 1000; // what takes long is drawn less often
    },
    curve(gpu, index, key) {
      const known = curve(gpu, key, this.found.period);
      const live = this.kind.live && this.curves[index]?.[key];
      if (!live) return known;
      return goneOn(known, this.at, live.map((value) => (value === null ? null : value * LIVE[key])));
    },
    row(index, known, bother) {
      return { label: `GPU ${index}`, curves: [known ?? NOTHING], marks: spells(this.found, index), troubles: bother.filter((one) => one.gpu === index) };
    },
    most(key) {
      return (key === "memory_used" && Math.max(...this.found.gpus.map((gpu) => gpu.memory_total ?? 0))) || undefined;
    },
    sentence(from, first) {
      if (first === Infinity) return nothing(this.found);
      const begin = first > from + Math.max(5, 2 * this.found.period) ? `Recorded since ${clock(first, this.now)}. ` : "";
      return begin + explained(this.found);
    },
  },
};
