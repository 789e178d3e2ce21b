// A table of rows that change: a real <table> where there is room, cards on a phone. See page/table.py for what it takes.
//
// Rows are replaced one by one (`patch`), so that what did not change is not drawn again, and neither focus, nor the
// selection, nor a row that is being dragged is lost. Everything that users wrote is shown as text.

import { markRaw, toRaw } from "vue";
import { clock, duration, expected } from "/page/assets/words.js";

// Rows are replaced, never changed, so nobody need watch what is in them.
const plain = (row) => markRaw(toRaw(row));
const whole = (epoch) => new Date(1000 * epoch).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });

// Only paths of this page: a link is never made of what somebody wrote.
const own = (path) => (typeof path === "string" && /^\/(?![/\\])/.test(path) ? path : undefined);

// A duration that goes on; it alone is drawn again each second.
const Since = {
  template: `<time :datetime="iso" :title="title">{{ text }}</time>`,
  props: { at: Number },
  inject: ["clock"],
  computed: {
    iso() { return new Date(1000 * this.at).toISOString(); },
    title() { return "since " + whole(this.at); },
    text() { return duration(this.clock.now - this.at); },
  },
};

// What is left until something should be over; it ticks as well.
const Left = {
  template: `<time :datetime="iso" :title="title">{{ text }}</time>`,
  props: { at: Number, by: String },
  inject: ["clock"],
  computed: {
    iso() { return new Date(1000 * this.at).toISOString(); },
    title() { return (this.by === "limit" ? "ends at the latest " : "expected to end ") + whole(this.at); },
    text() { return expected(this.at - this.clock.now, this.by); },
  },
};

const Cell = {
  components: { Since, Left },
  template: `
    <span v-if="value === null || value === undefined || value === ''" class="gy-soft" aria-hidden="true">–</span>
    <template v-else-if="kind === 'link'">
      <a v-if="own(value.href)" class="gy-link" :href="own(value.href)" :title="value.title">{{ value.text }}</a>
      <span v-else>{{ value.text }}</span>
      <span v-for="tag in value.tags || []" class="gy-data-tag">{{ tag }}</span>
    </template>
    <span v-else-if="kind === 'chip'" :class="['gy-chip', 'gy-' + value.state]">{{ value.text }}</span>
    <Since v-else-if="kind === 'since'" :at="value" />
    <time v-else-if="kind === 'time'" :datetime="iso(value)" :title="whole(value)">{{ clock(value) }}</time>
    <span v-else-if="kind === 'span'">{{ duration(value) }}</span>
    <div v-else-if="kind === 'stand'" class="gy-data-stand">
      <div v-if="value.fraction !== null" class="gy-data-bar" role="progressbar" :aria-label="'Progress of ' + label"
        aria-valuemin="0" aria-valuemax="100" :aria-valuenow="Math.round(100 * value.fraction)">
        <div :style="{ width: 100 * value.fraction + '%' }"></div>
      </div>
      <span v-if="!value.end || value.fraction !== null">{{ words(value.text) || "–" }}{{ value.end ? ", " : "" }}</span>
      <Left v-if="value.end" :at="value.end" :by="value.by" />
    </div>
    <code v-else-if="kind === 'code'" class="gy-data-mono" :title="value">{{ value }}</code>
    <span v-else :title="value">{{ value }}</span>`,
  props: { kind: String, value: null, label: String },
  methods: { own, duration, words: gyWords, clock: (at) => clock(at, Date.now() / 1000), whole, iso: (epoch) => new Date(1000 * epoch).toISOString() },
};

const Row = {
  components: { Cell },
  template: `
    <tr role="row" :data-key="row.key" :tabindex="tabbed ? 0 : -1" :class="classes"
      @keydown="table.press($event, row)" @focusin="table.at = row.key"
      @dragover="table.over($event, row)" @drop="table.drop($event, row)">
      <td v-if="table.picks" role="cell" class="gy-data-pick">
        <label v-if="row.picks" class="gy-data-check"><input type="checkbox" :checked="picked" :tabindex="inner" :aria-label="'Select ' + row.label"
          @change="table.pick(row.key, $event.target.checked)"></label>
        <span v-if="row.moves" class="gy-data-grip" draggable="true" :title="'Drag ' + row.label + ' to another place'" aria-hidden="true"
          @dragstart="table.drag($event, row)" @dragend="table.dragged()"><q-icon name="drag_indicator" /></span>
      </td>
      <td v-for="(column, place) in table.columns" role="cell" :data-label="column.label"
        :class="{ 'gy-data-right': column.right, 'gy-data-grow': column.grow, 'gy-data-none': empty(row.cells[place]), ['gy-data-is-' + column.kind]: true }">
        <template v-if="column.kind === 'step'">
          <button v-if="row.acts.includes('lower')" type="button" class="gy-data-act" :tabindex="inner" :aria-label="'Lower the priority of ' + row.label"
            title="Lower its priority (-)" @click="table.act('lower', row)"><q-icon name="remove" /></button>
          <span>{{ row.cells[place] }}</span>
          <button v-if="row.acts.includes('raise')" type="button" class="gy-data-act" :tabindex="inner" :aria-label="'Raise the priority of ' + row.label"
            title="Raise its priority (+)" @click="table.act('raise', row)"><q-icon name="add" /></button>
        </template>
        <Cell v-else :kind="column.kind" :value="row.cells[place]" :label="row.label" />
      </td>
      <td v-if="table.buttons.length" role="cell" class="gy-data-acts">
        <template v-for="action in table.buttons">
          <button v-if="row.acts.includes(action.name)" type="button" :class="['gy-data-act', { 'gy-data-danger': action.danger }]"
            :tabindex="inner" :aria-label="action.label + ' ' + row.label" :title="action.label + (action.key ? ' (' + action.key + ')' : '')"
            @click="table.act(action.name, row)"><q-icon :name="action.icon" /></button>
        </template>
      </td>
    </tr>`,
  props: { row: Object, picked: Boolean, tabbed: Boolean, mark: String },
  inject: ["table"],
  computed: {
    // One row at a time is on the way of the tab key; the arrows lead to the others.
    inner() { return this.tabbed ? 0 : -1; },
    empty() { return (value) => value === null || value === "" || (value.fraction === null && !value.text && !value.end); },
    classes() { return ["gy-data-row", this.picked && "gy-data-picked", this.mark]; },
  },
};

export default {
  components: { Row },
  template: `
    <div class="gy-data-box">
      <table class="gy-data" role="table" :aria-label="caption" @dragleave="left($event)">
        <thead role="rowgroup">
          <tr role="row">
            <th v-if="picks" role="columnheader" scope="col" class="gy-data-pick">
              <label v-if="pickable.length" class="gy-data-check"><input type="checkbox" aria-label="Select all on this page"
                :checked="pickable.length === picked.length" :indeterminate.prop="picked.length > 0 && picked.length < pickable.length"
                @change="pickAll($event.target.checked)"></label>
              <span v-else class="gy-hidden">Selection</span>
            </th>
            <th v-for="column in columns" role="columnheader" scope="col" :class="{ 'gy-data-right': column.right }">{{ column.label }}</th>
            <th v-if="buttons.length" role="columnheader" scope="col"><span class="gy-hidden">Actions</span></th>
          </tr>
        </thead>
        <tbody role="rowgroup">
          <Row v-for="(row, index) in list" :key="row.key" :row="row" :picked="picked.includes(row.key)"
            :tabbed="row.key === at || (index === 0 && !known(at))" :mark="marked === row.key ? mark : ''" />
        </tbody>
      </table>
    </div>`,
  props: {
    caption: String,
    columns: Array,
    rows: Array,
    actions: { type: Array, default: () => [] },
    picks: Boolean,
    now: Number,
  },
  emits: ["act", "pick", "move"],
  provide() { return { table: this, clock: this.clock }; },
  data() {
    return {
      list: this.rows.map(plain), picked: [], at: "",
      dragging: null, marked: "", mark: "", later: [],
      clock: { now: this.now || Date.now() / 1000 }, ahead: this.now ? this.now - Date.now() / 1000 : 0,
    };
  },
  computed: {
    buttons() { return this.actions.filter((action) => action.icon); },
    pickable() { return this.list.filter((row) => row.picks).map((row) => row.key); },
  },
  watch: {
    rows(rows) { this.change(rows.map(plain)); },
  },
  mounted() {
    this.timer = setInterval(() => { this.clock.now = Date.now() / 1000 + this.ahead; }, 1000);
  },
  unmounted() { clearInterval(this.timer); },
  methods: {
    // Take rows that are new or changed, and the keys of all rows in order if that is another one.
    patch(changed, order, now) {
      if (now) this.ahead = now - Date.now() / 1000;
      if (this.dragging) { this.later.push([changed, order, 0]); return; }
      const known = new Map(this.list.map((row) => [row.key, row]));
      for (const row of changed) known.set(row.key, plain(row));
      const keys = order || this.list.map((row) => row.key);
      this.change(keys.filter((key) => known.has(key)).map((key) => known.get(key)));
    },
    // A row that moves is taken out and put in again, and loses the focus by that.
    change(list) {
      const focus = this.$el?.contains(document.activeElement) ? document.activeElement : null;
      const place = focus ? this.list.findIndex((row) => row.key === this.at) : -1;
      this.list = list;
      const left = this.picked.filter((key) => this.pickable.includes(key));
      if (left.length !== this.picked.length) { this.picked = left; this.$emit("pick", left); }
      if (!focus) return;
      this.$nextTick(() => {
        if (focus.isConnected) {
          if (document.activeElement !== focus) focus.focus({ preventScroll: true });
        } else if (place >= 0) {
          this.go(Math.min(place, this.list.length - 1));
        }
      });
    },
    known(key) { return this.list.some((row) => row.key === key); },
    act(name, row) {
      this.at = row.key;
      this.$emit("act", { name, key: row.key });
    },
    pick(key, on) {
      this.picked = on ? [...new Set([...this.picked, key])] : this.picked.filter((other) => other !== key);
      this.$emit("pick", this.picked);
    },
    pickAll(on) {
      this.picked = on ? [...this.pickable] : [];
      this.$emit("pick", this.picked);
    },
    clear() { this.picked = []; },
    go(index) {
      const row = this.list[index];
      if (!row) return;
      this.at = row.key;
      this.$el.querySelectorAll("tbody > tr")[index]?.focus();
    },
    press(event, row) {
      if (event.ctrlKey || event.metaKey || event.target.tagName === "INPUT") return;
      const index = this.list.indexOf(row), on = event.currentTarget === event.target;
      const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
      if (event.altKey && step) {
        if (row.moves) this.shift(row, index, step);
      } else if (step) {
        this.go(Math.max(0, Math.min(this.list.length - 1, index + step)));
      } else if (event.key === " " && on && row.picks) {
        this.pick(row.key, !this.picked.includes(row.key));
      } else if (event.key === "Enter" && on) {
        event.currentTarget.querySelector("a[href]")?.click();
      } else if (event.key === "Home" && on) {
        this.go(0);
      } else if (event.key === "End" && on) {
        this.go(this.list.length - 1);
      } else {
        const action = this.actions.find((one) => one.key === event.key && row.acts.includes(one.name));
        if (!action || event.altKey) return;
        this.act(action.name, row);
      }
      event.preventDefault();
    },
    // Between which rows a row is to come: `above` and `below` are keys, or empty at an end of what is shown.
    put(row, others, place) {
      const above = others[place - 1]?.key || "", below = others[place]?.key || "";
      this.$emit("move", { key: row.key, above, below });
    },
    shift(row, index, step) {
      const others = this.list.filter((other) => other !== row);
      const place = index + step;
      if (place >= 0 && place <= others.length) this.put(row, others, place);
    },
    drag(event, row) {
      this.dragging = row;
      event.dataTransfer.effectAllowed = "move";
      event.dataTransfer.setData("text/plain", row.label);
      event.dataTransfer.setDragImage(event.target.closest("tr"), 10, 10);
    },
    lower(event) {
      const box = event.currentTarget.getBoundingClientRect();
      return event.clientY > box.top + box.height / 2;
    },
    over(event, row) {
      if (!this.dragging) return;
      event.preventDefault();
      this.marked = row.key;
      this.mark = this.lower(event) ? "gy-data-drop-below" : "gy-data-drop-above";
    },
    left(event) {
      if (!event.currentTarget.contains(event.relatedTarget)) this.marked = "";
    },
    drop(event, row) {
      if (!this.dragging) return;
      event.preventDefault();
      const moved = this.dragging, others = this.list.filter((other) => other !== moved);
      if (row !== moved) this.put(moved, others, others.indexOf(row) + (this.lower(event) ? 1 : 0));
    },
    dragged() {
      this.dragging = null;
      this.marked = "";
      for (const change of this.later.splice(0)) this.patch(...change);
    },
  },
};
