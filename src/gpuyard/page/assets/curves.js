// What the GPUs of a job did while it ran, and what the job itself used of them: recorded, and live as long as it runs.
import { METRICS, TROUBLES, curve, goneOn, numbers, said, spells, troubles } from "/page/assets/recording.js";
import { Recording, explained, inWords, nothing, template } from "/page/assets/recorded_base.js";
import { Strips } from "/page/assets/strips.js";
import { clock, size } from "/page/assets/words.js";

const USUAL = { show: "utilization,memory_used,power,temperature" };
const OWN = { utilization: "process_utilization", memory_used: "process_memory" };
const LIVE = ["utilization", "memory_used", "temperature", "power"];
const MOST = 3000; // live samples that are kept
const NOTHING = { at: [], mean: [], low: null, high: null };

export default {
  mixins: [Recording],
  components: { Strips },
  // `promised`: bytes of each GPU that it may use, if it shares them.
  props: { job: String, attempt: Number, gpus: Array, begin: Number, end: Number, promised: Number },
  template: template(),
  computed: {
    file() {
      return `job-${this.job}`;
    },
  },
  watch: {
    end: "load",
  },
  created() {
    this.show = this.wanted(USUAL.show.split(","));
    this.at = [];
    this.live = new Map(this.gpus.map((gpu) => [gpu, Object.fromEntries(LIVE.map((key) => [key, []]))]));
  },
  beforeUnmount() {
    clearTimeout(this.soon);
  },
  methods: {
    /** Samples that follow those before: `{at, gpus: [{index, utilization, ...}]}`, as JSON. */
    take(text) {
      const told = JSON.parse(text);
      this.at.push(...told.at);
      const old = Math.max(0, this.at.length - MOST);
      this.at.splice(0, old);
      for (const gpu of told.gpus) {
        const curves = this.live.get(gpu.index);
        for (const key of curves ? LIVE : []) {
          curves[key].push(...(gpu[key] ?? told.at.map(() => null)));
          curves[key].splice(0, old);
        }
      }
      this.soon ??= setTimeout(() => {
        this.soon = undefined;
        if (this.found && this.seen) this.draw();
      }, 900);
    },
    look(what) {
      Object.assign(this, what);
      this.tellAddress({ show: this.show.join() }, USUAL);
      this.load();
    },
    request() {
      const wanted = [...this.show, ...this.show.map((key) => OWN[key]).filter(Boolean), ...TROUBLES];
      return { path: `/jobs/${encodeURIComponent(this.job)}/recording`, query: { metrics: wanted.join(), points: this.points(2), attempt: this.attempt } };
    },
    // The last seconds of a run are written a little later.
    pause() {
      const now = Date.now() / 1000;
      if (this.end !== null && this.end !== undefined) return now - this.end < 15 ? 5 : 0;
      return Math.max(4, Math.min(60, (now - this.begin) / 200));
    },
    draw() {
      const last = this.end ?? Math.max(this.found.end, this.at.at(-1) ?? 0), room = Math.max(1, (last - this.begin) / 60);
      const span = { from: this.begin - room, to: last + room };
      const bother = troubles(this.found);
      const known = Object.fromEntries(this.show.map((key) => [key, this.gpus.map((gpu) => this.curve(gpu, key))]));
      this.$refs.charts?.forEach(({ metric, show }) => show({ ...span, legend: this.legend(metric), rows: this.gpus.map((gpu, i) => this.row(gpu, metric, known[metric][i], bother)) }));
      this.bother = said(bother);
      this.table = this.gpus.map((gpu, i) => ({ key: gpu, cells: this.show.map((key) => this.told_of(gpu, key, known[key][i])) }));
      const first = Math.min(...Object.values(known).flat().map((one) => one?.at[0] ?? Infinity));
      this.bare = Boolean(this.end) && first === Infinity; // axes without a curve tell nothing
      if (this.bare) this.table = [];
      this.words = this.sentence(first);
    },
    curve(gpu, key) {
      const known = curve(this.found.gpus.find((one) => one.index === gpu), key, this.found.period);
      return this.end || !LIVE.includes(key) ? known : goneOn(known, this.at, this.live.get(gpu)[key]);
    },
    own(gpu, key) {
      const one = OWN[key] && this.found.jobs.find((entry) => entry.gpu === gpu && entry.id === this.job);
      const found = one && curve(one, OWN[key], this.found.period);
      return found && numbers(found) ? found : null;
    },
    row(gpu, key, known, bother) {
      const own = this.own(gpu, key);
      const curves = [{ ...(known ?? NOTHING), name: `GPU ${gpu}` }, ...(own ? [{ ...own, name: `GPU ${gpu}, the job` }] : [])];
      const run = [{ at: this.begin, label: "start", text: "the job begins" }, { at: this.end, label: "end", text: "the job ends" }].filter(({ at }) => at);
      const others = spells(this.found, gpu, this.job);
      return { label: `GPU ${gpu}`, curves, lines: key === "memory_used" ? this.limits(own) : [], marks: [...run, ...others], troubles: bother.filter((one) => one.gpu === gpu) };
    },
    legend(key) {
      return this.gpus.some((gpu) => this.own(gpu, key)) ? ["the GPU", "the job itself"] : [];
    },
    // What it used at most, against what it may use.
    limits(own) {
      const peak = numbers(own)?.most;
      return [
        ...(peak ? [{ value: peak, text: `peak ${size(peak)}` }] : []),
        ...(this.promised ? [{ value: this.promised, text: `promised ${size(this.promised)}` }] : []),
      ];
    },
    told_of(gpu, key, known) {
      const own = numbers(this.own(gpu, key));
      const all = inWords(METRICS[key], numbers(known, this.begin, this.end ?? Infinity));
      return own ? `${all}; the job itself: ${inWords(METRICS[key], own)}` : all;
    },
    sentence(first) {
      if (first === Infinity) return nothing(this.found, "Nothing is recorded of its GPUs.");
      const missing = first > this.begin + Math.max(30, 3 * this.found.period) ? `Its beginning is not recorded, only from ${clock(first, Date.now() / 1000)} on. ` : "";
      return missing + explained(this.found);
    },
  },
};
