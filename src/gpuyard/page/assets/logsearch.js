// The search of a log, as a part of its component: through the whole file, from its end on.

import { search } from "/page/assets/logfile.js";
import { markIn } from "/page/assets/logrows.js";

const MOST_HITS = 100_000;
const NEAR = 10; // lines

export const SEARCHING = {
  data: () => ({ searching: false, query: "", exact: false, hits: 0, hit: -1, hunting: false, progress: 0 }),

  computed: {
    foundText() {
      const lines = `${this.hits.toLocaleString()} line${this.hits === 1 ? "" : "s"}`;
      const where = this.hit >= 0 ? `${(this.hit + 1).toLocaleString()} of ${lines}` : lines;
      if (this.hunting) return `${where}, ${Math.round(100 * this.progress)} % searched`;
      return this.sought ? (this.hits ? where : "no line has it") : "";
    },
    sought() {
      return this.query !== "";
    },
  },

  created() {
    this.found = []; // offsets of lines, or of places within long ones, the last one of the file first
    this.here = -1; // where the line begins that was shown last
  },

  methods: {
    async openSearch() {
      this.searching = true;
      await this.$nextTick();
      this.$refs.query.focus();
      this.$refs.query.select();
      if (this.query && !this.found.length) this.find();
    },

    closeSearch() {
      this.stopSearch();
      Object.assign(this, { searching: false, hits: 0, hit: -1 });
      this.found = [];
      this.parsed.clear();
      this.draw();
      this.$refs.view.focus();
    },

    later() {
      clearTimeout(this.soon);
      this.soon = setTimeout(() => this.find(), 250);
    },

    stopSearch() {
      clearTimeout(this.soon);
      this.hunt?.abort();
      this.hunting = false;
    },

    /** Look through the whole file, from its end on; the first match is shown at once. */
    async find() {
      this.stopSearch();
      this.found = [];
      Object.assign(this, { hits: 0, hit: -1, progress: 0 });
      this.parsed.clear();
      this.draw();
      if (!this.query || !this.opened || !this.size) return;
      const { signal } = (this.hunt = new AbortController());
      const size = this.size;
      this.hunting = true;
      this.follow = false;
      let end = size;
      await this.insist(signal, () =>
        search(this.file.source, end, this.query, !this.exact, signal, (offsets, where) => {
          end = where;
          if (this.found.length < MOST_HITS) this.found = this.found.concat(offsets);
          this.hits += offsets.length;
          this.progress = 1 - where / size;
          if (this.hit < 0 && this.found.length) this.step(1);
        }),
      );
      if (!signal.aborted) this.hunting = false;
    },

    /** Show an earlier match, or a later one. */
    async step(by) {
      const next = this.hit + by;
      if (!this.found.length || next >= this.found.length) return;
      this.hit = Math.max(0, next);
      this.follow = false;
      const line = await this.goTo(this.found[this.hit]);
      if (line >= 0) await this.showMatch(this.nearest(line));
    },

    /** The nearest line that has a match: where bars are written over each other, an offset may be that of a neighbour. */
    nearest(line) {
      const has = (number) => this.file.lines[number] && markIn(this.rowsOfLine(number));
      for (let far = 0; far < NEAR; far++) {
        if (has(line - far)) return line - far;
        if (has(line + far)) return line + far;
      }
      return line;
    },

    /** Scroll to the row and the column of a line's first match. */
    async showMatch(line) {
      const { view, probe } = this.$refs;
      this.here = this.file.lines[line].at;
      const { row, column } = markIn(this.rowsOfLine(line)) ?? { row: 0, column: 0 };
      this.scrollTo(Math.max(0, (this.tops[line] + row) * this.rowHeight - view.clientHeight / 3));
      await this.$nextTick(); // it may be wider only now
      view.scrollLeft = Math.max(0, column * (probe.getBoundingClientRect().width / 20) - view.clientWidth / 3);
    },
  },
};
