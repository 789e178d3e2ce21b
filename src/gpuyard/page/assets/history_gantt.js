// Who was on which GPU when. It asks the API by itself, so that thousands of spans do not go through the page's process.
//
// Jobs that share a GPU stand in lanes above each other. All that users wrote is drawn as text on a canvas, or bound.
import { echarts } from "nicegui-echart";
import { Load } from "/page/assets/history_load.js";
import { leaveWheel } from "/page/assets/wheel.js";
import { clock, count, duration, jobPath } from "/page/assets/words.js";

const MOST = 5000; // spans
const HUES = [215, 25, 150, 345, 275, 50, 190, 100, 310, 5];
const TONES = { running: "busy", succeeded: "good", cancelled: "warn", preempted: "warn", requeued: "warn" };
const WORDS = { timeout: "out of time", oom: "out of memory" };
const STATES = ["running", "succeeded", "failed", "timeout", "oom", "interrupted", "cancelled", "preempted", "requeued"];

const variable = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();
const short = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
const line = (text) => text.replace(/[\u0000-\u001f\u007f]/g, " ");

// Give each bar of one GPU, in the order of their begins, a lane: those that overlap stand apart, and share the height.
function arranged(bars) {
  let ends = [], together = [];
  const close = () => {
    for (const bar of together) bar.lanes = ends.length;
    ends = [];
    together = [];
  };
  for (const bar of bars) {
    if (together.length && ends.every((end) => end <= bar.begin)) close();
    bar.lane = ends.findIndex((end) => end <= bar.begin);
    if (bar.lane < 0) bar.lane = ends.length;
    ends[bar.lane] = bar.end;
    together.push(bar);
  }
  close();
  return bars;
}

export default {
  template: `
    <div>
      <div class="gy-gantt-tools">
        <div class="gy-list-choices" role="group" aria-label="Colour by">
          <button v-for="one in ['state', 'user']" type="button" class="gy-list-choice" :aria-pressed="colour === one ? 'true' : 'false'"
            @click="paint(one)">By {{ one }}</button>
        </div>
        <div class="gy-gantt-zoom" role="group" aria-label="Zoom">
          <button v-for="one in tools" type="button" class="gy-data-act" :aria-label="one[1]" :title="one[1]" @click="zoom(one[2], one[3])">
            <q-icon :name="one[0]" /></button>
        </div>
        <button type="button" class="gy-list-choice gy-gantt-take" :disabled="!zoomed" @click="take">Show this span only</button>
        <ul class="gy-gantt-legend"><li v-for="one in legend"><span :style="{ background: one.colour }"></span>{{ one.text }}</li></ul>
      </div>
      <p class="gy-soft"><span role="status">{{ problem || words }}</span> <span class="gy-gantt-hint">{{ hint }}</span></p>
      <div ref="chart" class="gy-gantt" role="img" :aria-label="words" :style="{ height: height + 'px' }"></div>
      <details v-if="summary.length" class="gy-gantt-text">
        <summary>As a table</summary>
        <table><thead><tr><th scope="col">GPU</th><th scope="col">Jobs</th><th scope="col">In use</th></tr></thead>
          <tbody><tr v-for="gpu in summary"><th scope="row">{{ gpu.index }}</th><td>{{ gpu.jobs }}</td><td>{{ gpu.busy }}</td></tr></tbody>
        </table>
      </details>
      <h3 class="gy-h3">What they did</h3>
      <load ref="load" :back="back" :since="since" :until="until" @metric="$emit('metric', $event)" />
    </div>`,
  components: { Load },
  // `back`: so many seconds up to now; without it, from `since` to `until`, or up to now.
  props: { back: Number, since: Number, until: Number, user: String },
  emits: ["span", "metric"],
  data() {
    return {
      colour: "state", words: "", hint: "", problem: "", height: 120, legend: [], summary: [], zoomed: false,
      tools: [["zoom_in", "Zoom in", 0.5, 0], ["zoom_out", "Zoom out", 2, 0], ["chevron_left", "Earlier", 1, -0.5],
        ["chevron_right", "Later", 1, 0.5], ["zoom_out_map", "All of it", Infinity, 0]],
    };
  },
  mounted() {
    leaveWheel(this.$refs.chart); // nobody would get past a chart that is as high as the window
    this.chart = echarts.init(this.$refs.chart);
    this.chart.on("click", (event) => location.assign(jobPath(this.bars[event.dataIndex].job)));
    this.chart.on("datazoom", () => {
      this.zoomed = this.span() < 0.999 * (this.end - this.begin);
      this.$refs.load.follow(...this.shown(), this.zoomed);
    });
    this.sizes = new ResizeObserver(() => this.chart.resize());
    this.sizes.observe(this.$refs.chart);
    this.$watch("$q.dark.isActive", () => this.$nextTick(() => this.draw()));
    this.$watch(() => [this.back, this.since, this.until].join(), () => this.load(true));
    this.$watch("user", () => this.draw());
    this.bars = [];
    this.load(true);
  },
  beforeUnmount() {
    clearTimeout(this.timer);
    this.sizes?.disconnect();
    this.chart?.dispose();
  },
  methods: {
    async load(anew) {
      clearTimeout(this.timer);
      const round = (this.round = (this.round || 0) + 1);
      const now = Date.now() / 1000, since = this.back ? now - this.back : this.since;
      const asked = new URLSearchParams({ since: new Date(1000 * since).toISOString(), limit: MOST });
      if (this.until) asked.set("until", new Date(1000 * this.until).toISOString());
      try {
        const answer = await fetch(`/api/v1/usage?${asked}`);
        const told = await answer.json();
        if (round !== this.round) return; // something else was asked for meanwhile
        if (!answer.ok) throw new Error(told.detail);
        this.problem = "";
        this.arrange(told);
        await this.$nextTick();
        this.chart.resize();
        this.draw(anew);
      } catch (error) {
        this.problem = `What was on the GPUs cannot be told: ${error.message}`;
      }
      if (!this.until) this.timer = setTimeout(() => this.again(), 1000 * Math.max(5, (now - since) / 400));
    },
    again() {
      if (document.hidden) this.timer = setTimeout(() => this.again(), 5000);
      else this.load(false);
    },
    // Bars from columns: one for each GPU that a job was on.
    arrange(told) {
      const { job, name, user, kind, gpu, begin, end, state, attempt } = told.columns;
      this.begin = told.since;
      this.end = told.until;
      this.gpus = told.gpus;
      const rows = new Map();
      job.forEach((id, n) => {
        for (const index of gpu[n]) {
          const bar = { job: id, name: line(name[n] || ""), user: line(user[n]), gpu: index, begin: begin[n], end: end[n] ?? told.until,
            open: end[n] === null, state: state[n], attempt: attempt[n], loan: kind[n] === "grant" };
          if (!rows.has(index)) rows.set(index, []);
          rows.get(index).push(bar);
          this.gpus = Math.max(this.gpus, index + 1);
        }
      });
      this.bars = [...rows.values()].flatMap((bars) => {
        bars.sort((one, other) => one.begin - other.begin);
        return arranged(bars);
      });
      this.height = 96 + this.gpus * Math.max(14, Math.min(34, 560 / Math.max(1, this.gpus)));
      this.tell(kind.filter((one) => one !== "grant").length, told.more);
    },
    tell(jobs, more) {
      const now = Date.now() / 1000;
      const when = `from ${clock(this.begin, now)} to ${this.until ? clock(this.end, now) : "now"}`;
      this.words = jobs ? `${count(jobs, "attempt")} on ${count(this.gpus, "GPU")} ${when}.` : `No job was on a GPU ${when}.`;
      this.hint = jobs ? "Ctrl and the wheel zoom, dragging moves, a click opens the job." : "";
      if (more) this.words += ` Only the latest ${count(MOST, "attempt")} are drawn; choose a shorter time to see all.`;
      const all = this.end - this.begin;
      this.summary = Array.from({ length: this.gpus }, (_, index) => {
        const bars = this.bars.filter((bar) => bar.gpu === index);
        let busy = 0, last = this.begin;
        for (const bar of bars) {
          busy += Math.max(0, Math.min(bar.end, this.end) - Math.max(bar.begin, last));
          last = Math.max(last, Math.min(bar.end, this.end));
        }
        return { index, jobs: new Set(bars.map((bar) => bar.job)).size, busy: `${Math.round((100 * busy) / all)} %` };
      });
    },
    // The colour of each bar, and what to tell of it.
    colours() {
      const dark = document.body.classList.contains("body--dark");
      const soft = variable("--gy-soft");
      if (this.colour === "state") {
        const of = (state) => variable(`--gy-${TONES[state] || "bad"}`);
        const there = STATES.filter((state) => this.bars.some((bar) => bar.state === state));
        const named = new Map(); // states that look the same stand together
        for (const state of there) named.set(of(state), [...(named.get(of(state)) || []), WORDS[state] || state]);
        this.legend = [...named].map(([colour, states]) => ({ colour, text: states.join(", ") }));
        return (bar) => of(bar.state);
      }
      const had = new Map();
      for (const bar of this.bars) had.set(bar.user, (had.get(bar.user) || 0) + bar.end - bar.begin);
      const users = [...had.keys()].sort((one, other) => had.get(other) - had.get(one));
      const hue = (place) => (place < HUES.length ? `hsl(${HUES[place]}, 50%, ${dark ? 70 : 36}%)` : soft);
      this.legend = users.slice(0, HUES.length).map((user, place) => ({ colour: hue(place), text: user }));
      if (users.length > HUES.length) this.legend.push({ colour: soft, text: "others" });
      const places = new Map(users.map((user, place) => [user, place]));
      return (bar) => hue(places.get(bar.user));
    },
    paint(colour) {
      this.colour = colour;
      this.draw();
    },
    draw(anew = false) {
      if (this.begin === undefined) return;
      const colour = this.colours(), ink = variable("--gy-card"), soft = variable("--gy-soft"), edge = variable("--gy-edge");
      const shades = this.bars.map(colour);
      const option = {
        animation: false,
        aria: { enabled: true, label: { description: this.words } },
        textStyle: { color: soft },
        grid: { left: 64, right: 16, top: 8, bottom: 72 },
        xAxis: { type: "time", min: 1000 * this.begin, max: 1000 * this.end, axisLabel: { color: soft, hideOverlap: true },
          axisLine: { lineStyle: { color: edge } }, splitLine: { show: true, lineStyle: { color: edge, opacity: 0.5 } } },
        yAxis: { type: "category", inverse: true, data: Array.from({ length: this.gpus }, (_, n) => `GPU ${n}`),
          axisLabel: { color: soft }, axisTick: { show: false }, axisLine: { lineStyle: { color: edge } },
          splitArea: { show: true, interval: 0, areaStyle: { color: ["transparent", variable("--gy-sunk")] } } },
        dataZoom: [
          { type: "inside", filterMode: "weakFilter", zoomOnMouseWheel: "ctrl", preventDefaultMouseMove: false, ...(anew ? { start: 0, end: 100 } : {}) },
          { type: "slider", filterMode: "weakFilter", height: 22, bottom: 14, borderColor: edge, textStyle: { color: soft },
            showDataShadow: false, ...(anew ? { start: 0, end: 100 } : {}) },
        ],
        tooltip: { renderMode: "richText", confine: true, backgroundColor: variable("--gy-card"), borderColor: edge,
          textStyle: { color: variable("--gy-ink") }, formatter: (event) => this.about(this.bars[event.dataIndex]) },
        series: [{
          type: "custom", clip: true, encode: { x: [1, 2], y: 0 }, progressive: 0,
          data: this.bars.map((bar) => [bar.gpu, 1000 * bar.begin, 1000 * bar.end]),
          renderItem: (params, api) => this.bar(params, api, shades, ink),
        }],
      };
      this.chart.setOption(option);
      if (anew) this.zoomed = false;
      this.$refs.load.follow(...(this.zoomed ? this.shown() : [this.begin, this.end]), this.zoomed);
    },
    bar(params, api, shades, ink) {
      const bar = this.bars[params.dataIndex];
      const [left, middle] = api.coord([api.value(1), bar.gpu]), right = api.coord([api.value(2), bar.gpu])[0];
      const band = 0.84 * api.size([0, 1])[1], tall = band / bar.lanes;
      const box = { x: left, y: middle - band / 2 + bar.lane * tall, width: Math.max(1.5, right - left), height: Math.max(1, tall - 1) };
      const shape = echarts.graphic.clipRectByRect(box, params.coordSys);
      if (!shape) return undefined;
      const faint = this.user && bar.user !== this.user;
      const named = shape.width > 34 && shape.height > 10;
      return {
        type: "rect", shape: { ...shape, r: 2 }, style: { fill: shades[params.dataIndex], opacity: faint ? 0.2 : bar.loan ? 0.6 : 1 },
        ...(named && {
          textContent: { type: "text", style: { text: bar.name ? `${bar.job} ${short(bar.name, 60)}` : bar.job, fill: ink, fontSize: 11,
            width: shape.width - 8, overflow: "truncate", ellipsis: "…" } },
          textConfig: { position: "insideLeft" },
        }),
      };
    },
    about(bar) {
      const now = Date.now() / 1000;
      const until = bar.open ? "now" : clock(bar.end, now);
      return [
        `Job ${bar.job}${bar.attempt > 1 ? `, attempt ${bar.attempt}` : ""}`, short(bar.name, 70), `${bar.user}, ${WORDS[bar.state] || bar.state}`,
        `GPU ${bar.gpu}${bar.loan ? ", on loan" : ""}`, `${clock(bar.begin, now)} to ${until} (${duration(bar.end - bar.begin)})`,
      ].filter(Boolean).join("\n");
    },
    shown() {
      const { startValue, endValue } = this.chart.getOption().dataZoom[0];
      return [startValue / 1000, endValue / 1000];
    },
    span() {
      const [first, last] = this.shown();
      return last - first;
    },
    zoom(times, by) {
      const [first, last] = this.shown(), whole = this.end - this.begin;
      const wide = Math.min(whole, (last - first) * times);
      let start = (first + last) / 2 + by * (last - first) - wide / 2;
      start = Math.max(this.begin, Math.min(this.end - wide, start));
      this.chart.dispatchAction({ type: "dataZoom", startValue: 1000 * start, endValue: 1000 * (start + wide) });
    },
    take() {
      const [since, until] = this.shown();
      this.$emit("span", { since, until });
    },
  },
};
