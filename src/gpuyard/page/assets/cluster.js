// The cluster. It keeps what it was sent, and is sent what changed: `take` is called with that, as JSON.
import { markRaw } from "vue";
import { NodeTile } from "/page/assets/cluster_node.js";
import { count, duration, size } from "/page/assets/words.js";

const CELLS = { free: "free", ours: "in use", over: "more used than charged", foreign: "foreign", closed: "closed" };

// A node among hundreds: a bar for each GPU, as high as what is charged, with a mark where use is.
const Box = {
  props: { node: Object, prefix: String },
  computed: {
    told() {
      const { name, model, troubles, cells } = this.node;
      const kinds = Object.keys(CELLS).map((kind) => [CELLS[kind], cells.filter(([state]) => state === kind).length]);
      const states = kinds.filter(([, many]) => many).map(([word, many]) => `${many} ${word}`);
      const charged = cells.length ? Math.round(cells.reduce((sum, cell) => sum + cell[1], 0) / cells.length) : 0;
      const known = cells.filter((cell) => cell[2] !== null);
      const used = known.length ? `, ${Math.round(known.reduce((sum, cell) => sum + cell[2], 0) / known.length)} % used` : "";
      return [name, model, troubles.join(", "), `GPUs: ${states.join(", ")}`, `${charged} % of the memory charged${used}`].filter(Boolean).join("\n");
    },
  },
  template: `
    <li><a class="gy-cl-box" :class="{ 'gy-cl-shut': node.troubles.length }" :href="node.href" :title="told" :aria-label="told">
      <span class="gy-cl-name"><span><q-icon v-if="node.troubles.length" name="block" aria-hidden="true" /><span class="gy-cl-prefix">{{ prefix }}</span>{{ node.name.slice(prefix.length) }}</span></span>
      <span class="gy-cl-cells" aria-hidden="true"><span v-for="(cell, i) in node.cells" :key="i" class="gy-cl-cell" :class="'gy-cl-is-' + cell[0]"
        ><i :style="{ height: cell[1] + '%' }"></i><b v-if="cell[2] !== null && cell[3]" :style="{ bottom: 'calc(' + cell[2] + '% - 2px)' }"></b></span></span>
    </a></li>`,
};

const Legend = {
  props: { few: Boolean },
  template: `
    <ul class="gy-cl-legend" aria-label="What the colours mean">
      <li><span class="gy-cl-key gy-cl-key-charged"></span>charged</li>
      <li><span class="gy-cl-key" :class="few ? 'gy-cl-key-used' : 'gy-cl-key-mark'"></span>used</li>
      <li><span class="gy-cl-key gy-cl-key-over"></span>more used than charged</li>
      <li><span class="gy-cl-key gy-cl-key-foreign"></span>foreign: of pods that others placed</li>
      <li><span class="gy-cl-key gy-cl-key-closed"></span>closed: cordoned or not ready</li>
      <li><span class="gy-cl-key"></span>free</li>
    </ul>`,
};

export default {
  components: { Box, LegendKeys: Legend, NodeTile },
  props: { begin: String },
  data: () => ({ parts: {}, now: Date.now() / 1000 }),
  watch: { begin: "take" },
  created() {
    this.ahead = 0;
    this.take(this.begin);
  },
  mounted() {
    this.timer = setInterval(this.tick, 1000);
  },
  unmounted() {
    clearInterval(this.timer);
  },
  computed: {
    figures() {
      return this.parts.figures;
    },
    nodes() {
      return (this.parts.order ?? []).map((name) => this.parts[`node ${name}`]).filter(Boolean);
    },
    // What all names begin with, up to a dash or a dot: a phone has no room for it.
    prefix() {
      const names = this.parts.order ?? [];
      const least = names.reduce((a, b) => (a < b ? a : b), names[0] ?? "");
      const most = names.reduce((a, b) => (a > b ? a : b), "");
      let same = 0;
      while (same < least.length && least[same] === most[same]) same += 1;
      return names.length > 1 ? (least.slice(0, same).match(/^.*[-._]/)?.[0] ?? "") : "";
    },
    troubles() {
      const { unready, cordoned, foreign, over } = this.figures;
      const some = (many, kind, icon, text) => (many ? [{ kind, icon, text: `${many.toLocaleString("en")} ${text}` }] : []);
      return {
        nodes: [...some(unready, "lost", "error", "not ready"), ...some(cordoned, "drained", "block", "cordoned")],
        gpus: [...some(foreign, "foreign", "warning", "foreign"), ...some(over, "lost", "error", "over what is charged")],
      };
    },
    percent() {
      const { charged, total } = this.figures;
      return total ? `${Math.round((100 * charged) / total)} %` : "";
    },
    more() {
      const { waiting, gated } = this.figures;
      return Math.max(0, waiting + gated - this.parts.head.length);
    },
  },
  methods: {
    count,
    duration,
    size,
    number: (value) => value.toLocaleString("en"),
    take(text) {
      const news = JSON.parse(text);
      if (news.now) this.ahead = news.now - Date.now() / 1000;
      for (const [name, part] of Object.entries(news.parts ?? {})) {
        if (part === null) delete this.parts[name];
        else this.parts[name] = typeof part === "object" ? markRaw(part) : part;
      }
      this.tick();
    },
    // Clocks differ: times are the scheduler's.
    tick() {
      this.now = Date.now() / 1000 + this.ahead;
    },
    asks: (pod) => (pod.memory ? `${size(pod.memory)} of ${count(pod.gpus, "GPU")}` : count(pod.gpus, "GPU")),
    why(pod) {
      const words = pod.reason || (pod.gated ? "has scheduling gates" : "about to be placed");
      return words.charAt(0).toUpperCase() + words.slice(1);
    },
  },
  template: `
    <div>
      <p v-if="!figures" class="gy-soft">Nothing is known of the cluster yet.</p>
      <template v-else>
      <div class="gy-ov-day">
        <dl>
          <div><dt>GPUs in use</dt><dd>{{ number(figures.busy) }}<small> of {{ number(figures.gpus) }}</small>
            <small v-for="one in troubles.gpus" :key="one.text" class="gy-ov-trouble" :class="'gy-ov-is-' + one.kind"><q-icon :name="one.icon" aria-hidden="true" />{{ one.text }}</small></dd></div>
          <div v-if="figures.total"><dt>GPU memory charged</dt><dd>{{ percent }}<small> of {{ size(figures.total) }}<template v-if="figures.used !== null">, {{ size(figures.used) }} used</template></small></dd></div>
          <div><dt>Pods running</dt><dd>{{ number(figures.running) }}<small v-if="figures.bound"> and {{ number(figures.bound) }} starting</small><small v-if="figures.ending">, {{ number(figures.ending) }} ending</small></dd></div>
          <div><dt>Pods waiting</dt><dd>{{ number(figures.waiting) }}<small v-if="figures.gated"> and {{ number(figures.gated) }} gated</small></dd></div>
          <div><dt>Nodes open</dt><dd>{{ number(figures.ready) }}<small> of {{ number(figures.nodes) }}</small>
            <small v-for="one in troubles.nodes" :key="one.text" class="gy-ov-trouble" :class="'gy-ov-is-' + one.kind"><q-icon :name="one.icon" aria-hidden="true" />{{ one.text }}</small></dd></div>
        </dl>
      </div>
      <ul class="gy-cl-facts" aria-label="The scheduler">
        <li>{{ figures.server }}</li>
        <li>policy {{ figures.policy }}</li>
        <li>admission by {{ figures.admission }}</li>
        <li v-if="figures.leader">{{ figures.leader }} decides</li>
        <li v-else class="gy-cl-warn"><q-icon name="warning" aria-hidden="true" />nobody is elected, so nothing is decided</li>
        <li v-if="figures.prometheus === 'ok'">Prometheus answers</li>
        <li v-else-if="figures.prometheus === 'off'">without Prometheus</li>
        <li v-else class="gy-cl-warn"><q-icon name="warning" aria-hidden="true" />Prometheus: {{ figures.prometheus }}</li>
        <li v-if="figures.totals.length">{{ figures.totals.join(", ") }} since it began</li>
      </ul>
      <h2 class="gy-hidden">Nodes</h2>
      </template>
      <div class="gy-cl-columns"><div class="gy-cl-main">
      <slot name="filters"></slot>
      <template v-if="figures">
      <legend-keys v-if="nodes.length" :few="parts.few" />
      <div v-if="!figures.nodes" class="gy-empty"><p>The cluster has no node with GPUs: none has nvidia.com/gpu among what can be allocated.</p></div>
      <div v-else-if="!nodes.length" class="gy-empty"><p>No node is like that.</p></div>
      <ul v-else-if="parts.few" class="gy-cl-tiles"><node-tile v-for="node in nodes" :key="node.name" :node="node" /></ul>
      <ul v-else class="gy-cl-grid"><box v-for="node in nodes" :key="node.name" :node="node" :prefix="prefix" /></ul>
      </template>
      <slot name="pager"></slot>
      </div>
      <section v-if="figures" class="gy-cl-side">
        <h2 class="gy-h2">Next in the queue</h2>
        <div v-if="!parts.head.length" class="gy-empty"><p>No pod waits for {{ figures.scheduler }}.</p></div>
        <ol v-else class="gy-ov-rows">
          <li v-for="(pod, i) in parts.head" :key="pod.key">
            <span class="gy-ov-place" aria-hidden="true">{{ pod.place ?? i + 1 }}</span>
            <span class="gy-ov-row">
              <a class="gy-link gy-ov-name" :href="pod.href" :title="pod.key">{{ pod.name }}</a>
              <span class="gy-soft">{{ pod.namespace }}</span>
              <span class="gy-soft">{{ asks(pod) }}</span>
              <span v-if="pod.gang" class="gy-soft">gang {{ pod.gang }}</span>
              <span class="gy-soft gy-ov-end">waits {{ duration(now - pod.since) }}</span>
              <span class="gy-ov-reason">{{ why(pod) }}</span>
            </span>
          </li>
        </ol>
        <a v-if="more" class="gy-link gy-ov-more" href="/pods?state=waiting">{{ number(more) }} more in the queue</a>
      </section></div>
    </div>`,
};
