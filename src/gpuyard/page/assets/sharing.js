// Batches: a card for each, with a bar of how its rows stand. All that users wrote is bound as text.
import { clock, count, duration, jobPath } from "/page/assets/words.js";

export default {
  props: { begin: String, name: String, acts: Boolean, rules: Boolean },
  emits: ["cancel"],
  data: () => ({ parts: {}, now: Date.now() / 1000, ahead: 0 }),
  computed: {
    known() {
      return this.parts.order !== undefined;
    },
    batches() {
      return this.parts.order.map((id) => this.parts[`batch ${id}`]).filter(Boolean);
    },
  },
  created() {
    if (this.begin) this.take(this.begin);
  },
  mounted() {
    this.timer = setInterval(this.tick, 1000);
    // The parts of this page come after the browser has looked for the one that its address names.
    this.$nextTick(() => document.getElementById(location.hash.slice(1))?.scrollIntoView());
  },
  unmounted() {
    clearInterval(this.timer);
  },
  methods: {
    clock,
    count,
    jobPath,
    take(text) {
      const news = JSON.parse(text);
      this.ahead = news.now - Date.now() / 1000;
      for (const [name, part] of Object.entries(news.parts)) this.parts[name] = part;
      this.tick();
    },
    tick() {
      this.now = Date.now() / 1000 + this.ahead;
    },
    ends(batch) {
      return batch.open && (this.rules || (this.acts && batch.user === this.name));
    },
    since(batch) {
      if (batch.open) return `submitted ${clock(batch.submitted, this.now)}, ${duration(this.now - batch.submitted)} ago`;
      return `ended ${clock(batch.ended, this.now)}, after ${duration(batch.ended - batch.submitted)}`;
    },
    stands: (batch) => (batch.open ? "on" : "over"),
    follow: (batch) => `gpuyard batch ${batch.open ? "follow" : "report"} ${batch.id}`,
    copy: (event) => gyCopy(event.currentTarget.parentElement.querySelector("code")),
    why(row) {
      const words = gyWords(row.why);
      return words.charAt(0).toUpperCase() + words.slice(1);
    },
    facts(row) {
      const found = [];
      if (row.gpus) found.push(`on GPU ${row.gpus}`);
      if (row.memory) found.push(row.memory);
      if (row.share !== null) found.push(`${Math.round(100 * row.share)} %`);
      return found.join(", ");
    },
  },
  template: `
    <div class="gy-share-batches">
      <p v-if="!known" class="gy-soft">Looking for batches …</p>
      <div v-else-if="!batches.length" class="gy-empty">
        <p>No batch was submitted yet. One takes many jobs from a file, and keeps the GPUs as full as their memory allows:</p>
        <div class="gy-command"><code class="gy-code" tabindex="0">gpuyard batch commands.csv</code>
          <q-btn flat dense round size="sm" icon="content_copy" aria-label="Copy the command" @click="copy" /></div>
      </div>
      <ul v-else class="gy-share-cards">
        <li v-for="batch in batches" :key="batch.id" class="gy-card gy-share-card" :id="'batch-' + batch.id">
          <div class="gy-share-head">
            <h3><a class="gy-link" :href="jobPath(batch.id)" :title="'The first job of ' + batch.name">{{ batch.name || "batch" }}</a></h3>
            <span class="gy-soft">batch {{ batch.id }} of {{ batch.user }}</span>
            <span class="gy-chip" :class="batch.open ? 'gy-running' : ''">{{ stands(batch) }}</span>
          </div>
          <div class="gy-share-bar" role="img" :aria-label="batch.told">
            <span v-for="one in batch.counts" :key="one.state" :class="'gy-share-' + one.state" :style="{ flexGrow: one.count }"
              :title="one.count + ' ' + one.word"></span>
          </div>
          <ul class="gy-share-counts">
            <li v-for="one in batch.counts" :key="one.state"><span class="gy-share-key" :class="'gy-share-' + one.state" aria-hidden="true"></span>{{
              one.count.toLocaleString("en") }} {{ one.word }}</li>
          </ul>
          <p class="gy-soft gy-share-line"><template v-if="batch.wave">{{ batch.wave }}; </template>{{ count(batch.rows, "row") }}<template
            v-if="batch.left">, {{ batch.left }}</template>; {{ since(batch) }}</p>
          <ul v-if="batch.running.length" class="gy-share-rows" :aria-label="'Rows of batch ' + batch.id + ' that run'">
            <li v-for="row in batch.running" :key="row.id">
              <span v-if="row.row !== null" class="gy-soft">row {{ row.row }}</span>
              <a class="gy-link" :href="jobPath(row.id)" :title="row.name">{{ row.name }}</a>
              <span class="gy-soft">{{ facts(row) }}</span>
              <span v-if="row.why" class="gy-share-why">{{ why(row) }}</span>
            </li>
            <li v-if="batch.more" class="gy-soft">and {{ batch.more.toLocaleString("en") }} more that run</li>
          </ul>
          <ul v-if="batch.achieved.length" class="gy-share-achieved">
            <li v-for="line in batch.achieved">{{ line }}</li>
          </ul>
          <div class="gy-share-foot">
            <div class="gy-command"><code class="gy-code" tabindex="0">{{ follow(batch) }}</code>
              <q-btn flat dense round size="sm" icon="content_copy" :aria-label="'Copy the command for batch ' + batch.id" @click="copy" /></div>
            <q-btn v-if="ends(batch)" no-caps outline color="negative" class="gy-button" label="Cancel"
              :aria-label="'Cancel batch ' + batch.id" @click="$emit('cancel', { id: batch.id, name: batch.name })" />
          </div>
        </li>
      </ul>
      <p v-if="known && parts.earlier" class="gy-soft">{{ count(parts.earlier, "earlier batch", "earlier batches") }}; <code class="gy-code">gpuyard batch list</code> has them.</p>
    </div>`,
};
