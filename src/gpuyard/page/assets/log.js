// What a job prints: opened at its end, followed as it comes, searched as a whole. Only the rows in sight are in the page.

import { parse, plain, rowsOf, wrapped } from "/page/assets/ansi.js";
import { PIECE, Refusal, Source, Window } from "/page/assets/logfile.js";
import { SEARCHING } from "/page/assets/logsearch.js";
import { TEMPLATE } from "/page/assets/logtemplate.js";
import { copied, cutOut, lineOf, looks, marked, sentence } from "/page/assets/logrows.js";

const OVER = ["succeeded", "failed", "cancelled", "timeout", "oom", "interrupted"];
const WAIT = 20; // seconds that the daemon may take to answer if nothing comes
const REST = 250; // milliseconds between two looks, so that what comes often comes together
const AGAIN = 1000;
const WIDEST = 2000; // columns of a line that is not wrapped
const SPARE = 10; // rows above and below those in sight

export default {
  props: { job: String, attempts: Number, state: String, note: String },
  mixins: [SEARCHING],
  template: TEMPLATE,

  data() {
    return {
      attempt: this.attempts, follow: true, wrap: true, problem: "", size: 0, opened: false, over: false, atEnd: true, height: 0, top: 0,
      widest: 0, least: 0, rows: [],
    };
  },

  computed: {
    done() {
      return this.over || OVER.includes(this.state) || this.attempt < this.attempts;
    },
    empty() {
      if (!this.attempts) return OVER.includes(this.state) ? "It never started, so it has printed nothing." : "It has not started, so it has not printed anything yet.";
      if (!this.opened || this.size) return "";
      return this.done ? "It has printed nothing." : "It has not printed anything yet.";
    },
    sizeText() {
      if (!this.size) return "";
      const units = ["B", "KiB", "MiB", "GiB"];
      const step = Math.min(3, Math.floor(Math.log2(this.size) / 10));
      return `${(this.size / 1024 ** step).toLocaleString(undefined, { maximumFractionDigits: step ? 1 : 0 })} ${units[step]}`;
    },
    whole() {
      return `/api/v1/jobs/${encodeURIComponent(this.job)}/log?attempt=${this.attempt}&follow=true`;
    },
    fileName() {
      return `job-${this.job}${this.attempts > 1 ? `-attempt-${this.attempt}` : ""}.log`;
    },
  },

  watch: {
    attempts(now, before) {
      if (this.attempt !== before) return; // somebody looks at an earlier one
      this.attempt = now;
      this.open();
    },
    state() {
      this.poll();
    },
    "$q.dark.isActive"() {
      this.draw();
    },
  },

  created() {
    // What need not be watched by Vue: it would cost more than all the rest.
    this.tops = [0];
    this.parsed = new Map();
    this.lastTop = 0;
    this.work = Promise.resolve();
    this.shown = () => (document.hidden ? this.polling?.abort() : this.poll());
  },

  mounted() {
    this.resized = new ResizeObserver(() => this.measure());
    this.resized.observe(this.$refs.view);
    document.addEventListener("visibilitychange", this.shown);
    this.open();
  },

  beforeUnmount() {
    this.resized.disconnect();
    document.removeEventListener("visibilitychange", this.shown);
    this.reading?.abort();
    this.polling?.abort();
    this.stopSearch();
  },

  methods: {
    // -- reading ------------------------------------------------------------------------------------
    /** Show the chosen attempt, from its end on. */
    async open() {
      for (const going of [this.reading, this.polling, this.hunt]) going?.abort();
      this.reading = new AbortController();
      this.file = new Window(new Source(this.job, this.attempt));
      Object.assign(this, { size: 0, opened: false, over: false, problem: "", follow: true, polling: null });
      this.renew();
      if (!this.attempts) return;
      const { signal } = this.reading;
      this.busy = true;
      await this.insist(signal, async () => {
        this.size = await this.file.open(signal);
        this.opened = true;
      });
      this.busy = false;
      if (signal.aborted) return;
      this.renew();
      await this.$nextTick();
      this.scrollTo(Infinity);
      this.poll();
      this.more();
      if (this.query) this.find();
    },

    /** Do something with the daemon; if it is away, say so and try until it is back. */
    async insist(signal, act) {
      while (!signal.aborted) {
        try {
          await act();
          this.problem = "";
          return true;
        } catch (error) {
          if (signal.aborted) return false;
          if (error instanceof Refusal && error.status !== 429) {
            this.problem = sentence(error.message);
            return false;
          }
          this.problem = "The daemon does not answer at the moment; this goes on by itself as soon as it does.";
          await new Promise((resolve) => setTimeout(resolve, AGAIN));
        }
      }
      return false;
    },

    /** Take in what comes while the end is followed. */
    async poll() {
      if (this.polling || !this.follow || !this.opened || document.hidden || this.attempt < this.attempts || this.over) return;
      const polling = (this.polling = new AbortController());
      const { signal } = polling;
      while (!signal.aborted && this.follow && !this.over) {
        let part;
        const look = async () => {
          // After a failure without waiting, so that it is soon known whether all is well again.
          part = await this.file.source.after(this.file.end, this.problem ? 0 : WAIT, signal);
        };
        if (!(await this.insist(signal, look))) break;
        if (part.end < this.file.end) {
          this.polling = null; // the job has cut its own output short
          this.open();
          return;
        }
        this.size = Math.max(this.size, part.end, part.size);
        if (part.bytes.length) this.grew(this.file.append(part));
        else if (OVER.includes(part.state)) this.over = true;
        if (part.bytes.length < PIECE) await new Promise((resolve) => setTimeout(resolve, REST));
      }
      if (this.polling === polling) this.polling = null;
    },

    /** Show what was added at the end. */
    async grew(dropped) {
      const above = dropped ? this.tops[dropped] : 0;
      this.renew();
      await this.$nextTick();
      if (this.follow) this.scrollTo(Infinity);
      else if (above) this.scrollTo(this.$refs.view.scrollTop - above * this.rowHeight);
    },

    /** Load more if somebody comes near to either end of what is loaded. */
    async more() {
      if (this.busy || !this.opened) return;
      const { view } = this.$refs;
      const near = 2 * view.clientHeight;
      const [file, { signal }] = [this.file, this.reading];
      this.busy = true;
      let loaded = false;
      if (view.scrollTop < near && file.begin > 0) {
        let told;
        if (await this.insist(signal, async () => (told = await file.earlier(signal))) && file === this.file) {
          this.renew();
          const down = this.tops[told.added] * this.rowHeight;
          await this.$nextTick();
          this.scrollTo(this.$refs.view.scrollTop + down);
          loaded = true;
        }
      } else if (view.scrollTop + view.clientHeight > view.scrollHeight - near && file.end < this.size && !this.polling) {
        let dropped;
        if (await this.insist(signal, async () => (dropped = await file.later(signal))) && file === this.file) await this.grew(dropped);
      }
      this.busy = false;
      if (loaded) this.more(); // lines may be few and long
    },

    // -- scrolling ----------------------------------------------------------------------------------
    scrolled() {
      const { view } = this.$refs;
      const up = view.scrollTop < this.lastTop - 1;
      const bottom = view.scrollTop + view.clientHeight >= view.scrollHeight - 1.5 * this.rowHeight;
      if (up && !bottom && this.expected !== view.scrollTop) this.follow = false;
      this.expected = null;
      this.lastTop = view.scrollTop;
      this.atEnd = bottom && this.file.end >= this.size;
      if (this.atEnd && !this.follow && !up) {
        this.follow = true;
        this.poll();
      }
      this.draw();
      this.more();
    },

    scrollTo(top) {
      const { view } = this.$refs;
      view.scrollTop = Math.min(top, view.scrollHeight);
      this.expected = view.scrollTop;
      this.lastTop = view.scrollTop;
      this.atEnd = view.scrollTop + view.clientHeight >= view.scrollHeight - 1.5 * this.rowHeight && this.file.end >= this.size;
      this.draw();
    },

    rest() {
      this.follow = false;
      this.polling?.abort();
    },

    async toEnd() {
      if (this.file.end < this.size) return this.open();
      this.follow = true;
      this.scrollTo(Infinity);
      this.poll();
    },

    async toBegin() {
      this.follow = false;
      if (this.file.begin > 0) await this.goTo(0);
      this.scrollTo(0);
    },

    /** Load what is around an offset, unless it is there already; its line. */
    async goTo(offset) {
      if (this.file.find(offset) < 0) {
        const [file, { signal }] = [this.file, this.reading];
        this.busy = true;
        await this.insist(signal, () => file.around(offset, this.size, signal));
        this.busy = false;
        this.renew();
        await this.$nextTick();
      }
      return this.file.find(offset);
    },

    pressed(event) {
      const inView = event.target === this.$refs.view;
      if ((inView && event.key === "/") || (event.key === "f" && (event.ctrlKey || event.metaKey))) this.openSearch();
      else if (inView && event.key === "Home") this.toBegin();
      else if (inView && event.key === "End") this.toEnd();
      else return;
      event.preventDefault();
    },

    // -- drawing ------------------------------------------------------------------------------------
    measure() {
      const box = this.$refs.probe.getBoundingClientRect();
      this.rowHeight = box.height || 18;
      const style = getComputedStyle(this.$refs.view);
      const width = this.$refs.view.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
      const columns = Math.max(20, Math.floor(width / (box.width / 20 || 8)));
      const before = this.columns;
      this.columns = columns;
      if (this.file && before !== columns) this.renew();
      if (this.file && this.follow) this.scrollTo(Infinity);
      else this.draw();
    },

    /** Count rows anew, since there are other lines, or rows of another length. */
    renew() {
      const tops = [0];
      let sum = 0;
      for (const line of this.file.lines) tops.push((sum += this.wrap ? this.rowsIn(line) : 1));
      this.tops = tops;
      this.parsed.clear();
      this.height = sum * (this.rowHeight || 18);
      this.draw();
    },

    rowsIn(line) {
      if (line.columns !== this.columns) {
        const columns = line.to - line.from; // at least as many bytes as columns
        line.columns = this.columns;
        line.rows = !line.note && columns <= this.columns ? 1 : this.countRows(line);
      }
      return line.rows;
    },

    countRows(line) {
      const text = this.file.text(line);
      if (/^[\x20-\x7e]*$/.test(text)) return rowsOf(text.length, this.columns);
      const { runs, columns } = parse(text, line.style);
      return columns <= this.columns ? 1 : wrapped(runs, this.columns).length;
    },

    draw() {
      const { view } = this.$refs;
      if (!view || !this.file || !this.rowHeight) return;
      const total = this.tops.at(-1);
      const first = Math.max(0, Math.min(total, Math.floor(view.scrollTop / this.rowHeight)) - SPARE);
      const last = Math.min(total, first + Math.ceil(view.clientHeight / this.rowHeight) + 2 * SPARE);
      const rows = [];
      let number = lineOf(this.tops, first);
      for (let row = first; row < last; row++) {
        while (this.tops[number + 1] <= row) number++;
        rows.push(this.rowAt(number, row - this.tops[number], row));
      }
      this.top = first * this.rowHeight;
      this.rows = rows;
    },

    rowAt(number, part, key) {
      const line = this.file.lines[number];
      const here = this.hit >= 0 && this.here === line.at;
      return { key, runs: this.rowsOfLine(number)[part] ?? [], here, note: Boolean(line.note) };
    },

    rowsOfLine(number) {
      if (!this.parsed.has(number)) {
        if (this.parsed.size > 500) this.parsed.clear();
        this.parsed.set(number, this.shownRows(this.file.lines[number]));
      }
      return this.parsed.get(number);
    },

    /** A line as rows of runs that are ready to be shown. */
    shownRows(line) {
      let { runs, columns } = line.note ? { runs: [{ text: line.note, style: {} }] } : parse(this.file.text(line), line.style);
      if (this.searching && this.query) runs = marked(runs, this.query, !this.exact);
      let rows = [runs];
      if (this.wrap) rows = wrapped(runs, this.columns);
      else if (columns > WIDEST) rows = [cutOut(runs, columns, WIDEST)];
      if (!this.wrap) this.widest = Math.max(this.widest, Math.min(columns ?? 0, WIDEST + 60));
      const dark = this.$q.dark.isActive;
      return rows.map((row) => row.map((run) => ({ ...run, ...looks(run.style, dark) })));
    },

    async toggleWrap() {
      const at = lineOf(this.tops, Math.floor(this.lastTop / this.rowHeight));
      const match = this.rows.some((row) => row.here);
      this.least = this.$refs.view.offsetHeight; // few lines that are long would leave a box of few rows
      this.wrap = !this.wrap;
      this.widest = 0;
      this.renew();
      await this.$nextTick();
      if (match) await this.showMatch(this.file.find(this.here));
      else this.scrollTo(this.follow ? Infinity : this.tops[at] * this.rowHeight);
    },

    // -- taking it along ---------------------------------------------------------------------------------
    async copy() {
      const lines = this.file.lines.map((line) => plain(this.file.text(line)));
      await copied(lines.join("\n"));
      const part = this.file.begin > 0 || this.file.end < this.size ? ", which are loaded" : "";
      this.$q.notify({ message: `Copied ${lines.length.toLocaleString()} lines${part}`, timeout: 2000, position: "bottom" });
    },

    /** Save what there is by now of a job that goes on. */
    async save() {
      const { signal } = this.reading;
      await this.insist(signal, async () => {
        const bytes = this.size ? await this.file.source.range(0, this.size, signal) : new Uint8Array();
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob([bytes]));
        link.download = this.fileName;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
      });
    },
  },
};
