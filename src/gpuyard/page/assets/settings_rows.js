// A table whose cells are text, with buttons in its last column. On a phone each row is a card, if it is to be.
// A cell is a text, or { text, href, chip, code, soft, bar, full }, or { links }: bar is how much of it is used, from 0 to 1.
export default {
  template: `
    <div class="gy-set-rows" :class="{ 'gy-set-cards': cards }">
      <table v-if="rows.length">
        <caption class="gy-hidden">{{ caption }}</caption>
        <thead>
          <tr>
            <th v-for="head in heads" scope="col">{{ head }}</th>
            <th v-if="acting" scope="col"><span class="gy-hidden">What can be done</span></th>
          </tr>
        </thead>
        <tbody>
          <tr v-for="row in rows" :key="row.key" :class="{ 'gy-set-over': row.over }">
            <component v-for="(cell, n) in row.cells" :is="n ? 'td' : 'th'" :scope="n ? null : 'row'" :data-head="heads[n]">
              <span v-if="typeof cell === 'string'" :title="cell">{{ cell }}</span>
              <template v-else>
                <span v-if="cell.links"><a v-for="one in cell.links" class="gy-link" :href="one.href">{{ one.text }}</a></span>
                <a v-else-if="cell.href" class="gy-link" :href="cell.href">{{ cell.text }}</a>
                <span v-else-if="cell.chip" :class="['gy-chip', cell.chip]">{{ cell.text }}</span>
                <code v-else-if="cell.code" class="gy-code">{{ cell.text }}</code>
                <span v-else :class="{ 'gy-soft': cell.soft }">{{ cell.text }}</span>
                <span v-if="cell.bar !== undefined" class="gy-set-bar" aria-hidden="true">
                  <span :class="{ 'gy-set-full': cell.full }" :style="{ width: 100 * Math.min(1, cell.bar) + '%' }"></span>
                </span>
              </template>
            </component>
            <td v-if="acting" class="gy-set-acts">
              <button v-for="act in row.acts" type="button" class="gy-set-act" :class="{ 'gy-set-danger': act.danger }"
                :disabled="act.busy" :aria-label="act.text + ': ' + name(row)" @click="$emit('act', row.key, act.name)">
                {{ act.text }}
              </button>
            </td>
          </tr>
        </tbody>
      </table>
    </div>
  `,
  props: { caption: String, heads: Array, rows: Array, cards: Boolean },
  emits: ["act"],
  computed: {
    acting() {
      return this.rows.some((row) => row.acts.length);
    },
  },
  methods: {
    name(row) {
      return typeof row.cells[0] === "string" ? row.cells[0] : row.cells[0].text;
    },
  },
};
