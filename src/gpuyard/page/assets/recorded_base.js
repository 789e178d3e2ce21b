// What all charts of recordings have in common: which metrics are shown, asking, asking again, telling what is wrong.
//
// A component that mixes this in says what to ask for (`request`), how often (`pause`, in seconds; 0: never again) and how to
// draw it (`draw`); its root is `$refs.root`.
import { METRICS, OF_GPUS, ask, csv, save } from "/page/assets/recording.js";

export const MOST_POINTS = 720; // the hours of 30 days

export const Recording = {
  data: () => ({ metrics: METRICS, all: OF_GPUS, show: [], words: "", problem: "", bother: [], table: [], told: false, bare: false }),
  mounted() {
    this.looking = new IntersectionObserver(([entry]) => {
      this.seen = entry.isIntersecting;
      if (this.seen && !this.timer && !this.asking && !this.over) this.load();
    }, { rootMargin: "300px" });
    this.looking.observe(this.$refs.root);
  },
  beforeUnmount() {
    this.looking.disconnect();
    clearTimeout(this.timer);
    this.asking?.abort();
  },
  methods: {
    /** What the address says is to be shown, or what is usual. */
    wanted(usual) {
      const given = (new URLSearchParams(location.search).get("show") || "").split(",").filter((key) => OF_GPUS.includes(key));
      return given.length ? given : usual;
    },
    /** Let the address say what is looked at, where that is not the usual. */
    tellAddress(values, usual) {
      const given = new URLSearchParams(location.search);
      for (const [name, value] of Object.entries(values)) {
        given.delete(name); // so that they come in the same order, whatever was chosen first
        if (value !== usual[name]) given.set(name, value);
      }
      const query = given.toString().replaceAll("%2C", ",");
      history.replaceState(history.state, "", location.pathname + (query ? `?${query}` : ""));
    },
    /** The metrics that are shown once one of them is switched on or off; one stays. */
    toggled(key) {
      if (!this.show.includes(key)) return OF_GPUS.filter((one) => one === key || this.show.includes(one));
      return this.show.length > 1 ? this.show.filter((one) => one !== key) : this.show;
    },
    /** How many values of each series there is room for. */
    points(charts) {
      return Math.round(Math.max(120, Math.min(MOST_POINTS, this.$refs.root.clientWidth / charts)));
    },
    async load() {
      clearTimeout(this.timer);
      this.timer = null;
      this.asking?.abort();
      const mine = (this.asking = new AbortController());
      try {
        const { path, query } = this.request();
        this.found = await ask(path, query, mine.signal);
        this.problem = "";
        this.told = this.found.gpus.length > 0;
        await this.$nextTick();
        this.draw();
      } catch (error) {
        if (error.name === "AbortError") return;
        this.problem = `What the GPUs did cannot be told: ${error.message.replace(/\.$/, "")}.`;
      }
      this.asking = null;
      const pause = this.pause();
      this.over = !pause && !this.problem;
      if (!this.over) this.timer = setTimeout(() => this.again(), 1000 * (pause || 10));
    },
    again() {
      this.timer = null;
      if (this.seen && !document.hidden) this.load();
      else if (this.seen) this.timer = setTimeout(() => this.again(), 5000);
    },
    download(name) {
      const of_job = this.show.map((key) => ({ utilization: "process_utilization", memory_used: "process_memory" })[key]).filter((key) => key && this.found.jobs.length);
      save(`gpuyard-${name}.csv`, csv(this.found, [...this.show, ...of_job]));
    },
  },
};

/** What a chart of several metrics has around it; `head` is the component's own. */
export const template = (head = "") => `
    <section ref="root" class="gy-rec" aria-label="What the GPUs did">
      <div class="gy-rec-tools">
        ${head}
        <div class="gy-list-choices" role="group" aria-label="What is shown">
          <button v-for="key in all" :key="key" type="button" class="gy-list-choice" :aria-pressed="show.includes(key) ? 'true' : 'false'" @click="look({ show: toggled(key) })">{{ metrics[key].name }}</button>
        </div>
        <button type="button" class="gy-list-choice gy-rec-save" :disabled="!told" title="What is shown, as a file" @click="download(file)"><q-icon name="download" aria-hidden="true" />CSV</button>
      </div>
      <p class="gy-soft gy-rec-words" :class="{ 'gy-rec-problem': problem }" role="status">{{ problem || words }}</p>
      <div v-show="!bare && (told || !problem)" class="gy-rec-charts">
        <strips v-for="key in show" :key="key" ref="charts" :metric="key" :caption="metrics[key].name" />
      </div>
      <ul v-if="bother.length" class="gy-rec-troubles" aria-label="Troubles"><li v-for="line in bother" :key="line"><q-icon name="warning" aria-hidden="true" />{{ line }}</li></ul>
      <details v-if="table.length" class="gy-rec-text">
        <summary>In numbers</summary>
        <div class="gy-rec-scroll" tabindex="0" role="region" aria-label="What the GPUs did, in numbers">
          <table><thead><tr><th scope="col">GPU</th><th v-for="key in show" :key="key" scope="col">{{ metrics[key].name }}</th></tr></thead>
            <tbody><tr v-for="row in table" :key="row.key"><th scope="row">{{ row.key }}</th><td v-for="(cell, i) in row.cells" :key="i">{{ cell }}</td></tr></tbody></table>
        </div>
      </details>
    </section>`;

export function inWords(measure, found) {
  if (!found) return "not known";
  return `${measure.text(found.mean)} on average, ${measure.text(found.least)} to ${measure.text(found.most)}`;
}

/** How values that stand for spans are drawn, whether they are made up, and what the daemon has to say. */
export function explained(found) {
  const spans = found.gpus.some((gpu) => Object.values(gpu.metrics).some((one) => one.min));
  const how = spans ? "A line is the mean of each span, the shade goes from the least to the most. " : "";
  return `${how}${found.simulated ? "These GPUs are simulated: what they do is made up. " : ""}${warned(found)}`.trim();
}

/** What is said where there is nothing to draw. */
export const nothing = (found, what = "Nothing is recorded of this time.") => warned(found) || what;

// The daemon's warnings as sentences.
const warned = (found) => found.warnings.map((text) => `${text.charAt(0).toUpperCase()}${text.slice(1).replace(/\.$/, "")}.`).join(" ");
