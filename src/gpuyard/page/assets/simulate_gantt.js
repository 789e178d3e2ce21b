// Who held which GPU when under one policy: a row for each GPU, shares of a GPU above each other.
import { echarts } from "nicegui-echart";
import { FETCHED } from "/page/assets/simulate_chart.js";
import { colour, lasts, step } from "/page/assets/simulate_words.js";
import { leaveWheel } from "/page/assets/wheel.js";

const COLOURS = ["#4e79a7", "#f28e2b", "#76b7b2", "#e15759", "#edc948", "#59a14f", "#b07aa1", "#ff9da7", "#9c755f", "#a0cbe8", "#d4a6c8", "#8cd17d"];

export default {
  mixins: [FETCHED],
  template: `
    <div>
      <p class="gy-soft" role="status">{{ words }}</p>
      <div ref="chart" class="gy-sim-chart" :style="{ height: height + 'px' }" role="img" :aria-label="words"></div>
    </div>`,
  data() {
    return { words: "", height: 240 };
  },
  async mounted() {
    this.drawn = null;
    leaveWheel(this.$refs.chart);
    this.chart.on("datazoom", () => {
      const { startValue, endValue } = this.chart.getOption().dataZoom[0];
      this.chart.setOption({ xAxis: { interval: step(endValue - startValue) } });
    });
    await this.load();
  },
  methods: {
    async load() {
      try {
        const answer = await fetch(this.url);
        const told = await answer.json();
        if (!answer.ok) throw new Error(told.detail);
        this.drawn = told.chart;
        this.words = this.about(told.chart);
        this.height = 110 + told.chart.gpus * Math.max(8, Math.min(30, 480 / told.chart.gpus));
        await this.$nextTick();
        this.chart.resize();
        this.draw();
      } catch (error) {
        this.words = error.message || "The schedule could not be fetched; reload the page.";
      }
    },
    about(chart) {
      const left = [];
      if (chart.gpus < chart.of_gpus) left.push(`the first ${chart.gpus} of ${chart.of_gpus.toLocaleString("en")} GPUs`);
      if (chart.until - chart.since < 0.999 * chart.last) left.push(`the busiest ${lasts(chart.until - chart.since)} of ${lasts(chart.last)}`);
      const shown = left.length ? `, thinned out to ${left.join(" and ")}` : "";
      return `The schedule of ${chart.policy}: ${chart.jobs.length.toLocaleString("en")} jobs${shown}.`;
    },
    byUser() {
      return this.drawn.jobs.length > 24 && new Set(this.drawn.users).size > 1;
    },
    colours() {
      const of = new Map();
      const names = this.byUser() ? this.drawn.users : this.drawn.jobs.map((_, n) => n);
      return names.map((name) => {
        if (!of.has(name)) of.set(name, COLOURS[of.size % COLOURS.length]);
        return of.get(name);
      });
    },
    told(bar) {
      const chart = this.drawn;
      const [gpu, start, end, , , job] = bar.value;
      const user = chart.users[job] ? `\nuser ${chart.users[job]}` : "";
      return `job ${chart.jobs[job]}${user}\n${chart.labels[gpu]}, from ${lasts(start)} to ${lasts(end)}\nsubmitted at ${lasts(chart.submitted[job])}`;
    },
    item(params, api, colours) {
      const [gpu, start, end, low, height, job] = [0, 1, 2, 3, 4, 5].map((n) => api.value(n));
      const [from, to] = [api.coord([start, gpu]), api.coord([end, gpu])];
      const row = api.size([0, 1])[1] * 0.86;
      const box = { x: from[0], y: from[1] + row / 2 - (low + height) * row, width: Math.max(to[0] - from[0], 1), height: height * row };
      const shape = echarts.graphic.clipRectByRect(box, params.coordSys);
      if (!shape) return null;
      const text = shape.width > 7 * String(this.drawn.jobs[job]).length && shape.height > 11 ? this.drawn.jobs[job] : "";
      return {
        type: "rect", shape, style: { fill: colours[job], stroke: colour("--gy-card"), lineWidth: shape.width > 3 ? 0.6 : 0 },
        textContent: { style: { text, fill: "#111", fontSize: 10 } }, textConfig: { position: "inside" },
      };
    },
    draw() {
      const chart = this.drawn;
      if (!chart) return;
      const [ink, soft, edge] = [colour("--gy-ink"), colour("--gy-soft"), colour("--gy-edge")];
      const colours = this.colours();
      const size = Math.max(8, Math.min(11, 480 / chart.gpus));
      this.chart.setOption(
        {
          animation: false,
          grid: { left: 58, right: 20, top: 10, bottom: 78 },
          tooltip: { renderMode: "richText", confine: true, backgroundColor: colour("--gy-card"), textStyle: { color: ink }, formatter: (bar) => this.told(bar) },
          xAxis: {
            type: "value", min: chart.since, max: chart.until, interval: step(chart.until - chart.since), name: "time since the first submit", nameLocation: "middle", nameGap: 24,
            nameTextStyle: { color: soft }, axisLabel: { color: soft, hideOverlap: true, showMinLabel: false, showMaxLabel: false, formatter: lasts }, splitLine: { lineStyle: { color: edge } },
          },
          yAxis: { type: "category", inverse: true, data: chart.labels, axisLabel: { color: soft, fontSize: size }, axisTick: { show: false } },
          dataZoom: [
            { type: "slider", bottom: 6, height: 20, filterMode: "weakFilter", labelFormatter: lasts, textStyle: { color: soft } },
            { type: "inside", filterMode: "weakFilter", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false, preventDefaultMouseMove: false },
          ],
          series: [
            {
              type: "custom", renderItem: (params, api) => this.item(params, api, colours), encode: { x: [1, 2], y: 0 },
              data: chart.job.map((job, n) => [chart.gpu[n], chart.start[n], chart.end[n], chart.low[n], chart.height[n], job]),
            },
          ],
        },
        { notMerge: true },
      );
    },
  },
};
