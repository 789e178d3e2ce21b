// Distributions and curves over time of all policies. They are fetched, not pushed, since there are thousands of points.
import { FETCHED } from "/page/assets/simulate_chart.js";
import { colour, lasts, step } from "/page/assets/simulate_words.js";

const METRICS = {
  wait: { name: "Wait", kind: "share", duration: true },
  jct: { name: "Completion time", kind: "share", duration: true },
  slowdown: { name: "Slowdown", kind: "share", duration: false },
  queue: { name: "Jobs waiting over time", kind: "time" },
  utilisation: { name: "GPUs in use over time", kind: "time", percent: true },
};
const COLOURS = ["#3b7ddd", "#d9652b", "#2a9d6f", "#b0489b", "#c99a06", "#5b6bd6", "#c0392b", "#158ea8"];
const DASHES = ["solid", [7, 4], [2, 3]];

export default {
  mixins: [FETCHED],
  template: `
    <div>
      <div class="gy-sim-tools">
        <label class="gy-sim-pick"><span>Show</span>
          <select v-model="metric"><option v-for="(m, key) in metrics" :key="key" :value="key">{{ m.name }}</option></select>
        </label>
        <label v-if="metrics[metric].kind === 'share'" class="gy-sim-tick"><input type="checkbox" v-model="log"> Logarithmic axis</label>
      </div>
      <p v-if="error" role="status" class="gy-refusal">{{ error }}</p>
      <div ref="chart" class="gy-sim-chart" role="img" :aria-label="about"></div>
    </div>`,
  data() {
    return { metric: "wait", log: true, curves: null, error: "", metrics: METRICS };
  },
  computed: {
    about() {
      const kind = METRICS[this.metric].kind === "share" ? "Share of the jobs that stay below each value" : "A line for each policy";
      return `${METRICS[this.metric].name}. ${kind}; the table above has the numbers.`;
    },
  },
  async mounted() {
    this.$watch(() => [this.metric, this.log], this.draw);
    await this.load();
  },
  methods: {
    async load() {
      try {
        const answer = await fetch(this.url);
        const told = await answer.json();
        this.error = answer.ok ? "" : told.detail;
        this.curves = told.curves;
        this.log = this.longest() > 120; // what is short is seen better as it is
        this.draw();
      } catch {
        this.error = "The curves could not be fetched; reload the page.";
      }
    },
    draw() {
      if (!this.curves) return;
      this.chart.setOption(this.options(), { notMerge: true });
    },
    points(curve) {
      const shown = METRICS[this.metric];
      if (shown.kind === "time") return curve.seconds.map((at, n) => [at, curve.values[n] * (shown.percent ? 100 : 1)]);
      const least = this.log ? 1 : 0; // a logarithm has no place for 0, which is a wait as good as 1 s
      return curve.values.map((value, n) => [Math.max(value, least), 100 * curve.shares[n]]);
    },
    longest() {
      return Math.max(0, ...this.curves.map((policy) => this.points(policy[this.metric]).at(-1)?.[0] ?? 0));
    },
    options() {
      const shown = METRICS[this.metric];
      const over = shown.kind === "time";
      const time = over || shown.duration;
      const [ink, soft, edge] = [colour("--gy-ink"), colour("--gy-soft"), colour("--gy-edge")];
      const axis = { axisLabel: { color: soft, hideOverlap: true }, splitLine: { lineStyle: { color: edge } }, nameTextStyle: { color: soft } };
      const label = (value) => (time ? lasts(value) : `${+value.toPrecision(3)}`);
      return {
        animation: false,
        textStyle: { color: ink },
        color: COLOURS,
        grid: { left: 56, right: 20, top: 56, bottom: 46 },
        legend: { type: "scroll", top: 0, textStyle: { color: ink }, pageTextStyle: { color: soft }, pageIconColor: soft },
        tooltip: {
          trigger: "axis", renderMode: "richText", confine: true, backgroundColor: colour("--gy-card"), textStyle: { color: ink },
          valueFormatter: (value) => (over && !shown.percent ? `${+value.toPrecision(3)}` : `${(+value).toFixed(1)} %`),
          axisPointer: { label: { formatter: (told) => label(told.value) } },
        },
        xAxis: {
          ...axis, type: !over && this.log ? "log" : "value", logBase: time ? 60 : 10, min: !over && this.log ? 1 : 0,
          interval: over || (time && !this.log) ? step(this.longest()) : undefined,
          name: over ? "time since the first submit" : shown.name.toLowerCase() + (this.log ? " (1 and less at the left edge)" : ""),
          nameLocation: "middle", nameGap: 28, axisLabel: { ...axis.axisLabel, formatter: label },
        },
        yAxis: { ...axis, type: "value", min: 0, max: over && !shown.percent ? null : 100, name: over ? (shown.percent ? "% of the GPUs" : "jobs") : "% of the jobs" },
        series: this.curves.map((policy, n) => ({
          type: "line", name: policy.policy, showSymbol: false, step: "end", data: this.points(policy[this.metric]),
          lineStyle: { width: 2, type: DASHES[Math.floor(n / COLOURS.length) % DASHES.length] },
        })),
      };
    },
  },
};
