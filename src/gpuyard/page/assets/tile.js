// One GPU: how it stands, who is on it, and what it does. All that users wrote is bound as text.
import { clock, duration, expected, jobPath, size } from "/page/assets/words.js";

const SPAN = 120; // seconds that a curve shows
const APART = 6; // seconds between samples, beyond which there is a gap
const WORDS = { free: "free", busy: "busy", foreign: "foreign", lost: "lost", drained: "drained", reserved: "reserved" };
const ICONS = {
  free: "check_circle",
  busy: "play_circle",
  foreign: "warning",
  lost: "error",
  drained: "block",
  reserved: "event",
};
const LISTED = 5; // jobs on a tile, unless somebody wants to see them all
const MEASURES = [
  { key: "utilization", name: "Load", long: "Utilization", unit: "%", low: 0, high: 100 },
  { key: "temperature", name: "Heat", long: "Temperature", unit: "°C", low: 20, high: 100 },
  { key: "power", name: "Power", long: "Power", unit: "W", low: 0, high: 100 },
];

// The lines of a curve: one for each stretch without a gap, in a box of SPAN by 24.
function stretches(at, values, low, high) {
  const found = [];
  const end = at[at.length - 1];
  let line = null;
  let before = null;
  at.forEach((time, i) => {
    const x = SPAN - (end - time);
    const value = values[i];
    if (value === null || value === undefined || x < 0 || (before !== null && time - before > APART)) line = null;
    before = time;
    if (value === null || value === undefined || x < 0) return;
    if (line === null) found.push((line = []));
    const share = Math.min(1, Math.max(0, (value - low) / (high - low || 1)));
    line.push(`${x.toFixed(1)},${(23 - 22 * share).toFixed(1)}`);
  });
  return found.map((points) => (points.length > 1 ? points.join(" ") : `${points[0]} ${points[0]}`));
}

const Spark = {
  props: { at: Array, values: Array, beat: Number, measure: Object, stands: String },
  computed: {
    lines() {
      this.beat; // the arrays are added to in place
      const { low, high } = this.measure;
      return stretches(this.at, this.values, low, Math.max(high, ...this.values.map((value) => value ?? 0)));
    },
    told() {
      this.beat;
      const known = this.values.filter((value) => value !== null && value !== undefined);
      const { long, unit } = this.measure;
      if (!known.length) return `${long} is not known`;
      return `${long} lately: from ${Math.min(...known)} to ${Math.max(...known)} ${unit}`;
    },
  },
  template: `
    <svg class="gy-ov-spark" role="img" :aria-label="told" :viewBox="'0 0 ${SPAN} 24'" preserveAspectRatio="none">
      <title>{{ told }}</title>
      <polyline v-for="(line, i) in lines" :key="i" :points="line" vector-effect="non-scaling-stroke" />
    </svg>`,
};

export const Tile = {
  components: { Spark },
  props: { gpu: Object, at: Array, curves: Object, beat: Number, now: Number, dense: Boolean },
  emits: ["chart"],
  data: () => ({ measures: MEASURES, all: false }),
  computed: {
    word() {
      const { kind, why } = this.gpu;
      return kind === "lost" && !why.includes("lost") ? "unknown" : WORDS[kind];
    },
    icon() {
      return ICONS[this.gpu.kind];
    },
    latest() {
      this.beat;
      const found = {};
      for (const key of ["utilization", "temperature", "power", "memory_used"]) found[key] = this.curves?.[key].at(-1) ?? null;
      return found;
    },
    // What takes memory: jobs by their letters, others hatched, and what nobody answers for.
    segments() {
      const { memory, jobs, others } = this.gpu;
      if (!memory) return [];
      const ours = jobs.map((job, i) => ({ key: `j${job.id}`, mark: this.mark(i), shade: i % 4, bytes: job.memory, told: this.jobTold(job) }));
      const foreign = others.map((one) => ({ key: `p${one.pid}`, mark: "", shade: "other", bytes: one.memory, told: this.otherTold(one) }));
      const known = [...ours, ...foreign].reduce((sum, one) => sum + one.bytes, 0);
      const rest = this.used - known;
      const all = [...ours, ...foreign];
      if (rest > memory / 50) all.push({ key: "rest", mark: "", shade: "rest", bytes: rest, told: `${size(rest)} taken by none of these processes` });
      const whole = Math.max(memory, known);
      return all.filter((one) => one.bytes > 0).map((one) => ({ ...one, share: (100 * one.bytes) / whole }));
    },
    used() {
      const { jobs, others } = this.gpu;
      const known = [...jobs, ...others].reduce((sum, one) => sum + one.memory, 0);
      return Math.max(known, (this.latest.memory_used ?? 0) * 2 ** 20);
    },
    memoryTold() {
      if (!this.gpu.memory) return "Memory is not known";
      if (this.gpu.kind === "lost") return `${size(this.gpu.memory)}, nobody knows how much is in use`;
      const taken = this.segments.map((one) => one.told).join("; ");
      const promised = this.gpu.shares ? `. ${this.promisedTold}` : "";
      return `Memory: ${size(this.used)} of ${size(this.gpu.memory)} in use${taken ? `: ${taken}` : ""}${promised}`;
    },
    promisedTold() {
      return `${size(this.gpu.shares.promised)} are promised in all, ${this.leftTold}`;
    },
    leftTold() {
      const { left } = this.gpu.shares;
      return left ? `${size(left)} left for shares` : "nothing left for shares";
    },
    // Where the mark of what is promised stands in the bar, whose end may be beyond the GPU's memory.
    promisedAt() {
      return Math.min(99.5, (100 * this.gpu.shares.promised) / Math.max(this.gpu.memory, this.used));
    },
    booking() {
      const { booked } = this.gpu;
      if (!booked) return "";
      if (booked.now) return `Reserved as ${booked.name} until ${clock(booked.end, this.now)}.`;
      return `Reserved as ${booked.name} from ${clock(booked.begin, this.now)} on.`;
    },
    note() {
      const { kind, why, drained, reason } = this.gpu;
      if (kind === "lost") return `${why}. Nothing is started on it.`;
      if (kind === "foreign") return this.dense ? why : "A process that is not gpuyard's is on it; nothing is started here.";
      if (drained && reason) return `Drained: ${reason}. Nothing ${kind === "drained" ? "" : "new "}is started on it.`;
      if (drained) return kind === "drained" ? "Nothing is started on it." : "Drained: nothing new is started on it.";
      return "";
    },
    shown() {
      const { jobs } = this.gpu;
      return this.all ? jobs : jobs.slice(0, this.dense ? 1 : jobs.length > LISTED ? LISTED - 1 : LISTED);
    },
  },
  methods: {
    clock,
    duration,
    jobPath,
    size,
    mark: (i) => String.fromCharCode(65 + (i % 26)),
    // `1.37 GiB of 1 GiB, more than promised`.
    memoryOf(job) {
      const promised = job.promised ? ` of ${size(job.promised)}` : "";
      return `${size(job.memory)}${promised}${job.over ? (this.dense ? "!" : ", more than promised") : ""}`;
    },
    title: (job) => job.name || (job.lease ? "lease" : `job ${job.id}`),
    jobTold(job) {
      return `${this.title(job)} of ${job.user ?? "somebody"} has ${size(job.memory)}${job.promised ? ` of ${size(job.promised)} promised` : ""}`;
    },
    otherTold(one) {
      const pid = one.pid === null ? "" : ` (process ${one.pid})`;
      return `${one.name || "a process"}${pid} of ${one.user ?? "somebody"} has ${size(one.memory)}, and is none of gpuyard's`;
    },
    awaited(rest, by) {
      return this.dense && rest >= 1 ? `~${duration(rest).split(" ")[0]} left` : expected(rest, by);
    },
    left(job) {
      const far = job.progress === null ? "" : `${Math.floor(100 * job.progress)} %`;
      const rest = job.end === null ? "" : this.awaited(job.end - this.now, job.by);
      return this.dense ? rest || far : [far, rest].filter(Boolean).join(", ");
    },
  },
  template: `
    <li class="gy-ov-tile" :class="'gy-ov-is-' + gpu.kind">
      <div class="gy-ov-tile-head">
        <h3><button type="button" class="gy-ov-gpu" :title="gpu.name + '; what it did is below'" @click="$emit('chart', gpu.index)">GPU {{ gpu.index }}</button></h3>
        <span v-if="gpu.simulated && !dense" class="gy-ov-simulated" title="Made up: no such GPU is in this machine">simulated</span>
        <span class="gy-ov-stands"><q-icon :name="icon" aria-hidden="true" />{{ word }}</span>
      </div>
      <p v-if="!dense" class="gy-ov-model" :title="gpu.name">{{ gpu.name }}</p>
      <p v-if="note" class="gy-ov-note" :title="gpu.reason || gpu.why">{{ note }}</p>
      <p v-if="booking" class="gy-ov-note gy-ov-booking">{{ booking }}</p>
      <ul v-if="gpu.jobs.length || gpu.others.length" class="gy-ov-tenants">
        <li v-for="(job, i) in shown" :key="job.id">
          <span class="gy-ov-mark" :class="'gy-ov-shade-' + (i % 4)" aria-hidden="true">{{ mark(i) }}</span>
          <span class="gy-ov-tenant">
            <span class="gy-ov-names">
              <a class="gy-link" :href="jobPath(job.id)" :title="title(job) + ' (' + job.id + ')'">{{ title(job) }}</a>
              <span v-if="job.lease && job.name" class="gy-soft">lease</span>
              <span v-if="job.loan" class="gy-ov-loan" :title="gpu.why">on loan to job {{ job.id }}</span>
              <span class="gy-ov-user" :title="job.user">{{ job.user }}</span>
            </span>
            <span class="gy-ov-facts">
              <span v-if="job.started !== null">{{ dense ? '' : 'for ' }}{{ duration(now - job.started) }}</span>
              <span v-else>is over, but still here</span>
              <span v-if="job.wide > 1 && !dense">on {{ job.wide }} GPUs</span>
              <span v-if="job.over || (job.memory && gpu.jobs.length > 1 && !dense)" :class="{ 'gy-ov-over': job.over }">{{ memoryOf(job) }}</span>
              <span v-if="left(job)" class="gy-ov-left">{{ left(job) }}</span>
            </span>
            <span v-if="job.note && !dense" class="gy-ov-decided" :title="job.note">{{ job.note }}</span>
            <span v-if="job.progress !== null" class="gy-ov-progress" role="progressbar" :aria-valuenow="Math.floor(100 * job.progress)"
              aria-valuemin="0" aria-valuemax="100" :aria-label="'How far ' + title(job) + ' is'">
              <span :style="{ width: 100 * job.progress + '%' }"></span>
            </span>
          </span>
        </li>
        <li v-if="gpu.jobs.length > shown.length || all">
          <button type="button" class="gy-ov-all" :aria-expanded="all" :title="gpu.jobs.map(jobTold).join('\\n')" @click="all = !all">
            {{ all ? "Show fewer" : gpu.jobs.length - shown.length + " more jobs" }}</button>
        </li>
        <li v-for="one in dense ? [] : gpu.others" :key="'p' + one.pid">
          <span class="gy-ov-mark gy-ov-shade-other" aria-hidden="true"></span>
          <span class="gy-ov-tenant">
            <span class="gy-ov-names">
              <span class="gy-ov-process" :title="one.name">{{ one.name || "a process" }}</span>
              <span class="gy-ov-user" :title="one.user">{{ one.user ?? "somebody" }}</span>
            </span>
            <span class="gy-ov-facts">
              <span>{{ one.draws ? "draws the screen" : "foreign process" }}{{ one.pid === null ? "" : " " + one.pid }}</span>
              <span v-if="one.memory">{{ size(one.memory) }}</span>
            </span>
          </span>
        </li>
      </ul>
      <p v-else-if="gpu.kind === 'free'" class="gy-ov-idle">Nobody is on it.</p>
      <div class="gy-ov-tile-foot">
        <div class="gy-ov-memory-line"><span v-if="!dense">Memory</span>
          <span v-if="gpu.memory && gpu.kind !== 'lost'">{{ size(used) }} of {{ size(gpu.memory) }}</span>
          <span v-else>unknown</span></div>
        <div class="gy-ov-memory" role="img" :aria-label="memoryTold" :title="memoryTold">
          <span v-for="one in segments" :key="one.key" class="gy-ov-segment" :class="'gy-ov-shade-' + one.shade"
            :style="{ width: one.share + '%' }" :title="one.told">{{ one.share > (dense ? 9 : 5) ? one.mark : "" }}</span>
          <span v-if="gpu.shares && !dense" class="gy-ov-promised" :style="{ left: promisedAt + '%' }" :title="promisedTold"></span>
        </div>
        <p v-if="gpu.shares && !dense" class="gy-ov-shares" :title="promisedTold">{{ leftTold }}</p>
        <dl class="gy-ov-measures">
          <div v-for="measure in measures" :key="measure.key">
            <dt>{{ measure.name }}</dt>
            <dd v-if="latest[measure.key] === null" class="gy-soft" title="unknown"><span aria-hidden="true">–</span><span class="gy-hidden">unknown</span></dd>
            <dd v-else>{{ latest[measure.key] }}<span class="gy-ov-unit">{{ measure.unit }}</span></dd>
            <dd v-if="curves && !dense" class="gy-ov-curve">
              <spark :at="at" :values="curves[measure.key]" :beat="beat" :measure="measure" />
            </dd>
          </div>
        </dl>
        <spark v-if="curves && dense" :at="at" :values="curves.utilization" :beat="beat" :measure="measures[0]" />
      </div>
    </li>`,
};
