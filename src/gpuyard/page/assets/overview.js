// The overview. It keeps what it was sent, and is sent what changed: `take` is called with that, as JSON.
import { Recorded } from "/page/assets/recorded.js";
import { Tile } from "/page/assets/tile.js";
import { clock, count, duration, jobPath, size } from "/page/assets/words.js";

const KEPT = 240; // samples
const METRICS = ["utilization", "temperature", "power", "memory_used"];
const STATES = {
  succeeded: "succeeded",
  failed: "failed",
  cancelled: "cancelled",
  timeout: "out of time",
  oom: "out of memory",
  interrupted: "interrupted",
};

const Command = {
  props: { text: String },
  methods: { copy: (event) => gyCopy(event.currentTarget.parentElement.querySelector("code")) },
  template: `
    <div class="gy-command">
      <code class="gy-code" tabindex="0">{{ text }}</code>
      <q-btn flat dense round size="sm" icon="content_copy" aria-label="Copy the command" @click="copy" />
    </div>`,
};

export default {
  components: { Recorded, Tile, Command },
  props: { begin: String, acts: Boolean },
  data: () => ({ parts: {}, day: null, now: Date.now() / 1000, beat: 0 }),
  created() {
    // Not reactive: curves are added to in place, and `beat` tells that they were.
    this.at = [];
    this.curves = {};
    this.ahead = 0;
    if (this.begin) this.take(this.begin);
  },
  mounted() {
    this.timer = setInterval(this.tick, 1000);
  },
  unmounted() {
    clearInterval(this.timer);
  },
  computed: {
    gpus() {
      return (this.parts.order ?? []).map((index) => this.parts[`gpu ${index}`]).filter(Boolean);
    },
    density() {
      const many = this.gpus.length;
      return many > 24 ? "gy-ov-many" : many > 12 ? "gy-ov-some" : many > 1 ? "gy-ov-few" : "gy-ov-one";
    },
    known() {
      return this.parts.order !== undefined;
    },
    inUse() {
      return this.gpus.filter((gpu) => gpu.jobs.length).length;
    },
    troubles() {
      const of = (kind) => this.gpus.filter((gpu) => gpu.kind === kind).length;
      const found = [];
      if (of("lost")) found.push({ kind: "lost", icon: "error", text: `${of("lost")} lost` });
      if (of("foreign")) found.push({ kind: "foreign", icon: "warning", text: `${of("foreign")} foreign` });
      if (of("drained")) found.push({ kind: "drained", icon: "block", text: `${of("drained")} drained` });
      return found;
    },
    more() {
      const listed = this.parts.head.reduce((sum, job) => sum + (job.tasks || 1), 0);
      return Math.max(0, this.parts.counts.waiting - listed);
    },
  },
  methods: {
    clock,
    count,
    duration,
    jobPath,
    size,
    take(text) {
      const news = JSON.parse(text);
      this.ahead = news.now - Date.now() / 1000;
      for (const [name, part] of Object.entries(news.parts ?? {})) this.parts[name] = part;
      if (news.day) this.day = news.day;
      if (news.samples) this.sample(news.samples);
      this.tick();
    },
    sample(news) {
      this.at.push(...news.at);
      const old = Math.max(0, this.at.length - KEPT);
      this.at.splice(0, old);
      news.gpus.forEach((gpu, i) => {
        this.curves[gpu] ??= Object.fromEntries(METRICS.map((metric) => [metric, []]));
        for (const metric of METRICS) {
          this.curves[gpu][metric].push(...news[metric][i]);
          this.curves[gpu][metric].splice(0, old);
        }
      });
      this.beat += 1;
    },
    // Clocks differ: times are the daemon's.
    tick() {
      this.now = Date.now() / 1000 + this.ahead;
    },
    // What a GPU did is below: go there.
    chart(gpu) {
      this.$refs.recorded.look({ gpu: String(gpu) });
      document.getElementById("recorded").scrollIntoView();
    },
    title: (job) => job.name || (job.lease ? "lease" : `job ${job.id}`),
    state: (job) => STATES[job.state] ?? job.state,
    why(job) {
      const words = gyWords(job.reason) || "about to start";
      return words.charAt(0).toUpperCase() + words.slice(1);
    },
    asks(job) {
      const gpus = count(job.gpus, "GPU");
      return job.memory === null ? gpus : `${size(job.memory)} of ${gpus}`;
    },
  },
  template: `
    <div class="gy-ov-overview">
      <div v-if="known" class="gy-ov-day">
        <dl>
          <div><dt>GPUs in use</dt><dd>{{ inUse }}<small> of {{ gpus.length }}</small>
            <small v-for="one in troubles" :key="one.kind" class="gy-ov-trouble" :class="'gy-ov-is-' + one.kind"><q-icon :name="one.icon" aria-hidden="true" />{{ one.text }}</small></dd></div>
          <div><dt>Jobs running</dt><dd>{{ parts.counts.running.toLocaleString("en") }}</dd></div>
          <div><dt>Jobs waiting</dt><dd>{{ parts.counts.waiting.toLocaleString("en") }}<small v-if="parts.counts.held"> and {{ parts.counts.held.toLocaleString("en") }} held</small></dd></div>
          <template v-if="day">
            <div><dt>GPU-hours today</dt><dd>{{ day.hours.toLocaleString("en", { maximumFractionDigits: day.hours < 10 ? 2 : 1 }) }}</dd></div>
            <div><dt>Mean wait today</dt><dd v-if="day.wait !== null">{{ duration(day.wait) }}</dd><dd v-else><small>nothing has ended yet</small></dd></div>
            <div><dt>Ended today</dt><dd>{{ day.done.toLocaleString("en") }}<small> done</small> {{ day.failed.toLocaleString("en") }}<small> failed</small></dd></div>
          </template>
        </dl>
      </div>
      <p v-else class="gy-soft">Looking at the GPUs …</p>

      <template v-if="known">
      <h2 class="gy-hidden">GPUs</h2>
      <div v-if="!gpus.length" class="gy-empty">
        <p>This machine has no GPU that gpuyard can see, so nothing can run. What is wrong, and what to do about it, tells</p>
        <command text="gpuyard doctor" />
        <p>Just to try gpuyard, make some up:</p>
        <command text="gpuyard up --simulate-gpus 4x16G" />
      </div>
      <p v-else-if="gpus[0].simulated" class="gy-ov-made-up">These GPUs are simulated: jobs run, but what the GPUs do is made up.</p>
      <ul v-if="gpus.length" class="gy-ov-tiles" :class="density">
        <tile v-for="gpu in gpus" :key="gpu.index" :gpu="gpu" :at="at" :curves="curves[gpu.index]" :beat="beat" :now="now"
          :dense="density === 'gy-ov-many'" @chart="chart" />
      </ul>

      <div class="gy-ov-lists">
        <section>
          <h2 class="gy-h2">Next in the queue</h2>
          <div v-if="!parts.head.length" class="gy-empty">
            <p>No job waits.{{ acts ? " Queue one:" : "" }}</p>
            <command v-if="acts" text="gpuyard submit -- python train.py" />
          </div>
          <ol v-else class="gy-ov-rows">
            <li v-for="(job, i) in parts.head" :key="job.id">
              <span class="gy-ov-place" aria-hidden="true">{{ i + 1 }}</span>
              <span class="gy-ov-row">
                <a class="gy-link gy-ov-name" :href="jobPath(job.id)" :title="title(job)">{{ title(job) }}</a>
                <span class="gy-soft gy-ov-user" :title="job.user">{{ job.user }}</span>
                <span v-if="job.tasks > 1" class="gy-soft">{{ count(job.tasks, "task") }}</span>
                <span class="gy-soft">{{ asks(job) }}</span>
                <span class="gy-soft gy-ov-end">waits {{ duration(now - job.since) }}</span>
                <span class="gy-ov-reason">{{ why(job) }}</span>
              </span>
            </li>
          </ol>
          <a v-if="more" class="gy-link gy-ov-more" href="/queue">{{ more.toLocaleString("en") }} more in the queue</a>
        </section>
        <section>
          <h2 class="gy-h2">Lately finished</h2>
          <div v-if="!parts.ended.length" class="gy-empty"><p>No job has ended yet.</p></div>
          <ul v-else class="gy-ov-rows">
            <li v-for="job in parts.ended" :key="job.id">
              <span class="gy-chip" :class="'gy-' + job.state">{{ state(job) }}</span>
              <span class="gy-ov-row">
                <a class="gy-link gy-ov-name" :href="jobPath(job.id)" :title="title(job)">{{ title(job) }}</a>
                <span class="gy-soft gy-ov-user" :title="job.user">{{ job.user }}</span>
                <span v-if="job.code" class="gy-code">exit {{ job.code }}</span>
                <span class="gy-soft">{{ job.ran === null ? "never ran" : "ran " + duration(job.ran) }}</span>
                <span class="gy-soft gy-ov-end">{{ clock(job.ended, now) }}</span>
              </span>
            </li>
          </ul>
          <a v-if="parts.ended.length" class="gy-link gy-ov-more" href="/history">All that ended</a>
        </section>
      </div>
      <h2 v-if="gpus.length" id="recorded" class="gy-h2">What the GPUs did</h2>
      <recorded v-if="gpus.length" ref="recorded" :gpus="gpus" :at="at" :curves="curves" :beat="beat" :now="now" />
      </template>
    </div>`,
};
