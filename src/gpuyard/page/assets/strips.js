// Strips over time, one below the other: a line for what was usual, a shade from the least to the most around it.
//
// Rows are `{label, curves: [{name, at, mean, low, high}], lines: [{value, text}], marks: [{at, text, label}], troubles}`.
// They are told by `show`, since thousands of numbers would cost much as reactive ones, and drawn on a canvas by hand: a
// library for charts takes a second for what this does in milliseconds, and these are drawn every second while one looks.
import { METRICS, ceiling, parts } from "/page/assets/recording.js";
import { ticks } from "/page/assets/timeaxis.js";
import { clock } from "/page/assets/words.js";

const SHADES = ["--gy-accent", "--gy-warn", "--gy-good"]; // of several curves in a row
const INKS = { soft: "--gy-soft", edge: "--gy-edge", ink: "--gy-ink", warn: "--gy-warn", bad: "--gy-bad" };
const MOST_MARKS = 60; // in a row; more would hide what they mark
const LISTED = 8; // rows that are told of at once
const FOOT = 22; // pixels for the times
const tall = (rows) => (rows === 1 ? 130 : rows <= 4 ? 66 : rows <= 8 ? 42 : rows <= 16 ? 30 : 20);

export const Strips = {
  props: { metric: String, left: { type: Number, default: 64 }, right: { type: Number, default: 16 }, caption: String },
  template: `
    <figure class="gy-strips">
      <figcaption v-if="caption">{{ caption }} <span class="gy-soft">{{ scale }}</span>
        <span v-for="(name, i) in legend" :key="name" class="gy-soft"><span class="gy-strips-key" :style="{ background: 'var(' + shades[i] + ')' }" aria-hidden="true"></span>{{ name }}</span></figcaption>
      <div ref="box" class="gy-strips-box" :style="{ height: height + 'px' }" tabindex="0" role="group" aria-label="Arrow keys tell what was when"
        @pointermove="point" @pointerdown="point" @pointerleave="tip = null" @blur="tip = null" @keydown.left.prevent="step(-1)" @keydown.right.prevent="step(1)" @keydown.esc="tip = null">
        <canvas ref="canvas" role="img" :aria-label="told"></canvas>
        <template v-if="tip">
          <div class="gy-strips-pointer" :style="{ left: tip.x + 'px' }"></div>
          <div class="gy-strips-tip" role="status" :style="tip.place"><p v-for="(line, i) in tip.lines" :key="i">{{ line }}</p></div>
        </template>
      </div>
    </figure>`,
  data: () => ({ height: 160, scale: "", told: "Being drawn", legend: [], shades: SHADES, tip: null }),
  mounted() {
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.$refs.box);
  },
  beforeUnmount() {
    this.sizes.disconnect();
  },
  watch: {
    "$q.dark.isActive"() {
      this.$nextTick(() => this.draw());
    },
  },
  methods: {
    /** Draw `{rows, from, to, most, legend}`: `most` is the top of the scale, where that is known; `legend` names the curves of a row. */
    show(what) {
      this.shown = what;
      const { rows } = what, measure = METRICS[this.metric];
      const each = tall(rows.length), apart = rows.length > 16 ? 3 : 7;
      const head = rows[0]?.marks?.some((mark) => mark.label) ? 18 : 6;
      this.places = rows.map((_, i) => ({ top: head + i * (each + apart), height: each }));
      this.height = head + rows.length * (each + apart) + FOOT;
      this.legend = what.legend ?? [];
      this.top = measure.most ?? what.most ?? ceiling(highest(rows), measure.binary);
      this.scale = rows.length === 1 ? rows[0].label : `0 to ${measure.text(this.top)}`;
      this.told = `${measure.name} over time, ${rows.length === 1 ? rows[0].label : `${rows.length} GPUs`}; the table has it in numbers`;
      this.$nextTick(() => this.draw());
    },
    draw() {
      const { canvas, box } = this.$refs;
      if (!canvas || !this.shown || !box.clientWidth) return;
      const ratio = window.devicePixelRatio || 1;
      const [wide, high] = [box.clientWidth, this.height].map((size) => Math.round(size * ratio));
      if (canvas.width !== wide || canvas.height !== high) Object.assign(canvas, { width: wide, height: high });
      this.width = box.clientWidth - this.left - this.right;
      const style = getComputedStyle(document.body), pen = canvas.getContext("2d");
      this.inks = Object.fromEntries(Object.entries({ ...INKS, ...SHADES }).map(([key, name]) => [key, style.getPropertyValue(name).trim()]));
      pen.setTransform(ratio, 0, 0, ratio, 0, 0);
      pen.clearRect(0, 0, box.clientWidth, this.height);
      this.font = `11.5px ${style.fontFamily}`;
      this.axis(pen);
      this.shown.rows.forEach((row, i) => this.row(pen, row, i));
    },
    x(at) {
      const { from, to } = this.shown;
      return this.left + ((at - from) / (to - from)) * this.width;
    },
    y(value, { top, height }) {
      return top + height * (1 - Math.min(1.02, Math.max(0, value / this.top)));
    },
    axis(pen) {
      const { from, to } = this.shown, end = this.places.at(-1).top + this.places.at(-1).height;
      for (const { at, text, strong } of ticks(from, to, this.width)) {
        const x = this.x(at);
        stroke(pen, this.inks.edge, [[x, this.places[0].top], [x, end]], { alpha: 0.5 });
        const half = 16; // of a label, which is not to be cut off
        write(pen, text, Math.min(this.left + this.width + this.right - half, Math.max(half, x)), end + 15, { ink: this.inks.soft, font: strong ? `600 ${this.font}` : this.font, align: "center" });
      }
    },
    row(pen, row, i) {
      const place = this.places[i], single = this.shown.rows.length === 1, { left, width, inks } = this;
      const base = place.top + place.height;
      if (single) this.levels(pen, place);
      else write(pen, row.label, left - 8, place.top + place.height / 2 + 4, { ink: inks.soft, font: this.font, align: "right" });
      stroke(pen, inks.edge, [[left, base + 0.5], [left + width, base + 0.5]]);
      this.marked(pen, row, place, i);
      pen.save();
      pen.beginPath();
      pen.rect(left, place.top - 2, width, place.height + 4);
      pen.clip();
      // The first is drawn through, those above it are not, so that all are seen where they have the same values.
      row.curves.forEach((one, n) => this.curve(pen, one, place, inks[n % SHADES.length], n ? { width: 2, dash: [7, 6] } : { width: row.curves.length > 1 ? 2 : 1.4 }));
      pen.restore();
      for (const line of row.lines ?? []) this.level(pen, line, place);
    },
    levels(pen, place) {
      const many = parts(this.top, METRICS[this.metric].binary);
      for (let n = 0; n <= many; n += 1) {
        const value = (this.top * n) / many, y = this.y(value, place);
        if (n) stroke(pen, this.inks.edge, [[this.left, y], [this.left + this.width, y]], { alpha: 0.5 });
        write(pen, METRICS[this.metric].text(value), this.left - 8, y + 4, { ink: this.inks.soft, font: this.font, align: "right" });
      }
    },
    level(pen, { value, text }, place) {
      const y = Math.round(this.y(value, place)) + 0.5;
      stroke(pen, this.inks.ink, [[this.left, y], [this.left + this.width, y]], { dash: [2, 2] });
      const above = y - place.top > 12; // where there is room: at the top stand the names of marks
      write(pen, text, this.left + this.width - 4, above ? y - 3 : y + 12, { ink: this.inks.ink, font: this.font, align: "right" });
    },
    curve(pen, one, place, ink, how) {
      const { from, to } = this.shown, { left, width, top } = this; // not by `this`: there are thousands of points
      const of = (values, k) => [left + ((one.at[k] - from) / (to - from)) * width, place.top + place.height * (1 - Math.min(1.02, Math.max(0, values[k] / top)))];
      for (const [first, last] of stretches(one.mean)) {
        const keys = Array.from({ length: last - first }, (_, n) => first + n);
        if (one.low) fill(pen, ink, [...keys.map((k) => of(one.high, k)), ...[...keys].reverse().map((k) => of(one.low, k))], 0.22);
        const line = keys.map((k) => of(one.mean, k));
        stroke(pen, ink, line.length > 1 ? line : held(line[0], Math.max(3, ((one.period ?? 0) / (to - from)) * width), one.low), how);
      }
    },
    // Lines for jobs' begins and ends, shades where the GPU was slowed down, triangles for errors.
    marked(pen, row, place, i) {
      const { from, to } = this.shown, base = place.top + place.height;
      const seen = (one) => one.at <= to && (one.until ?? one.at) >= from;
      const marks = (row.marks ?? []).filter(seen);
      for (const { at, label } of marks.length > MOST_MARKS ? [] : marks) {
        const x = Math.round(this.x(at)) + 0.5;
        stroke(pen, this.inks.soft, [[x, place.top], [x, base]], { dash: [4, 3] });
        if (label && i === 0) write(pen, label, x, place.top - 4, { ink: this.inks.soft, font: this.font, align: "center" });
      }
      for (const { at, until, grave } of (row.troubles ?? []).filter((one) => !one.mild && seen(one))) {
        const x = this.x(Math.max(from, at)), end = this.x(Math.min(to, until ?? at));
        if (grave) fill(pen, this.inks.bad, [[x - 5, place.top + 9], [x + 5, place.top + 9], [x, place.top]], 1);
        else fill(pen, this.inks.warn, [[x, place.top], [Math.max(x + 1.5, end), place.top], [Math.max(x + 1.5, end), base], [x, base]], 0.2);
      }
    },
    point(event) {
      const box = this.$refs.box.getBoundingClientRect();
      this.tell(event.clientX - box.left, event.clientY - box.top);
    },
    step(by) {
      const end = this.left + this.width;
      this.tell(Math.max(this.left, Math.min(end, this.tip ? this.tip.x + (by * this.width) / 120 : end)), this.tip?.y ?? 0);
    },
    /** Tell what was at some place: of all rows, or of the nearest where there are many. */
    tell(x, y) {
      if (!this.shown || !this.width) return;
      const wide = this.$refs.box.clientWidth, { from, to, rows } = this.shown;
      if (x < this.left || x > this.left + this.width) {
        this.tip = null;
        return;
      }
      const under = this.places.findIndex(({ top, height }) => y <= top + height + 4);
      const told = rows.length <= LISTED ? rows : [rows[under < 0 ? rows.length - 1 : under]];
      const side = x > wide / 2 ? { right: `${wide - x + 10}px` } : { left: `${x + 10}px` };
      const place = { ...side, top: `${rows.length <= LISTED ? 4 : Math.max(0, y - 30)}px` };
      this.tip = { x, y, place, lines: this.about(told, from + ((x - this.left) / this.width) * (to - from)) };
    },
    about(told, at) {
      const { from, to } = this.shown, near = (to - from) / 200;
      const seconds = to - from <= 7200 ? `:${String(new Date(1000 * at).getSeconds()).padStart(2, "0")}` : "";
      const lines = told.flatMap((row) => row.curves.map((one) => `${one.name ?? row.label}: ${this.value(one, at, near)}`));
      const marks = told.flatMap((row) => [...(row.marks ?? []), ...(row.troubles ?? [])].map((mark) => ({ ...mark, row })));
      const close = marks.filter((mark) => at >= mark.at - near && at <= (mark.until ?? mark.at) + near).slice(0, LISTED);
      return [clock(at, Date.now() / 1000) + seconds, ...lines, ...new Set(close.map((mark) => `${mark.row.label}: ${mark.text}`))];
    },
    value(one, at, near) {
      const i = nearest(one.at, at), text = METRICS[this.metric].text;
      const usual = i > 0 ? one.at[i] - one.at[i - 1] : 1;
      const before = one.at[i] <= at ? i : i - 1, drawn = [before, before + 1].every((k) => typeof one.mean[k] === "number");
      if (i < 0 || one.mean[i] === null || (!drawn && Math.abs(one.at[i] - at) > Math.max(near, usual))) return "not known";
      const spread = one.low && text(one.low[i]) !== text(one.high[i]) ? ` (${text(one.low[i])} to ${text(one.high[i])})` : "";
      return text(one.mean[i]) + spread;
    },
  },
};

function highest(rows) {
  let most = 0;
  for (const { curves, lines } of rows) {
    for (const one of curves) for (const value of one.high ?? one.mean) most = Math.max(most, value ?? 0);
    for (const { value } of lines ?? []) most = Math.max(most, value);
  }
  return most;
}

// From where to where something is known, again and again.
function stretches(values) {
  const found = [];
  let first = -1;
  for (let i = 0; i <= values.length; i += 1) {
    const known = i < values.length && values[i] !== null;
    if (known && first < 0) first = i;
    if (!known && first >= 0) {
      found.push([first, i]);
      first = -1;
    }
  }
  return found;
}

// A value without neighbours, for as long as it stands: from its time on, or around it where it stands for a span.
function held([x, y], wide, spans) {
  const begin = spans ? x - wide / 2 : x;
  return [[begin, y], [begin + wide, y]];
}

function along(pen, points) {
  pen.beginPath();
  points.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
}

function stroke(pen, ink, points, { width = 1, dash = [], alpha = 1 } = {}) {
  Object.assign(pen, { strokeStyle: ink, lineWidth: width, globalAlpha: alpha, lineJoin: "round" });
  pen.setLineDash(dash);
  along(pen, points);
  pen.stroke();
  pen.globalAlpha = 1;
}

function fill(pen, ink, points, alpha) {
  Object.assign(pen, { fillStyle: ink, globalAlpha: alpha });
  along(pen, points);
  pen.fill();
  pen.globalAlpha = 1;
}

function write(pen, text, x, y, { ink, font, align }) {
  Object.assign(pen, { fillStyle: ink, font, textAlign: align });
  pen.fillText(text, x, y);
}

/** Which of rising instants is nearest to one; -1 if there are none. */
export function nearest(at, wanted) {
  let low = 0, high = at.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  if (low === at.length) return low - 1;
  return low > 0 && wanted - at[low - 1] < at[low] - wanted ? low - 1 : low;
}
