// The table of a comparison: sorted by any column, the best of each marked by a word.
export default {
  template: `
    <div class="gy-sim-scroll" tabindex="0" role="region" aria-label="Ranking of the policies">
      <table class="gy-sim-ranking">
        <thead>
          <tr>
            <th scope="col" :aria-sort="way(-1)"><button type="button" @click="sort(-1)">Policy</button></th>
            <th v-for="(column, n) in columns" :key="n" scope="col" :aria-sort="way(n)" :title="column.about">
              <button type="button" @click="sort(n)">{{ column.name }}</button>
            </th>
          </tr>
        </thead>
        <tbody>
          <tr v-for="row in ordered" :key="row.number" :class="{ 'gy-sim-chosen': row.number === chosen }">
            <th scope="row">
              <button type="button" :aria-pressed="row.number === chosen" @click="$emit('choose', row.number)"
                title="Show its schedule below">{{ row.number + 1 }}. {{ row.policy }}</button>
              <small>{{ row.how }}</small>
            </th>
            <td v-for="(cell, n) in row.cells" :key="n" :class="{ 'gy-sim-first': cell.best }">
              {{ cell.text }}<small v-if="cell.best">best</small>
            </td>
          </tr>
        </tbody>
      </table>
    </div>`,
  props: { rows: Array, columns: Array, chosen: Number },
  emits: ["choose"],
  data() {
    return { by: 0, down: false };
  },
  computed: {
    ordered() {
      const rows = this.rows.map((row, number) => ({ ...row, number }));
      const sign = this.down ? -1 : 1;
      const value = (row) => (this.by < 0 ? row.policy : row.cells[this.by].value);
      return rows.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === null || y === null) return (x === null) - (y === null);
        return sign * (x < y ? -1 : x > y ? 1 : a.number - b.number);
      });
    },
  },
  methods: {
    sort(n) {
      this.down = this.by === n ? !this.down : false;
      this.by = n;
    },
    way(n) {
      return this.by === n ? (this.down ? "descending" : "ascending") : "none";
    },
  },
};
