// One node at large: its GPUs, what is charged and used of each, and who is on it. Also the tile of the overview.
import { count, size } from "/page/assets/words.js";

const STATES = { free: "free", ours: "in use", foreign: "foreign", closed: "closed" };
const LISTED = 6; // pods on a GPU, unless the node has the page for itself

// `62 of 80 GiB charged, 41 GiB used`, as far as it is known.
export function memoryOf(gpu) {
  const foreign = gpu.state === "foreign"; // others' pods are not counted
  const charged = !gpu.total ? "size unknown" : foreign ? size(gpu.total) : `${size(gpu.charged)} of ${size(gpu.total)} charged`;
  return gpu.used === null ? charged : `${charged}, ${size(gpu.used)} used`;
}

const share = (part, whole) => `${Math.min(100, whole ? (100 * part) / whole : 0)}%`;

export const NodeTile = {
  props: { node: Object, large: Boolean },
  computed: {
    busy() {
      return this.node.gpus.filter((gpu) => gpu.pods.length || gpu.state === "foreign").length;
    },
    tone() {
      if (this.node.troubles.length) return "gy-cl-troubled";
      return this.busy ? "gy-cl-in-use" : "gy-cl-idle";
    },
    stands() {
      return this.node.troubles.join(", ") || (this.busy ? `${this.busy} of ${this.node.gpus.length} in use` : "free");
    },
    room() {
      const [cpus, allCpus] = this.node.cpus;
      const [memory, allMemory] = this.node.memory;
      const number = (value) => Number(value.toFixed(1)).toLocaleString("en");
      const found = [];
      if (allCpus) found.push(`${number(cpus)} of ${number(allCpus)} CPUs free`);
      if (allMemory) found.push(`${size(memory)} of ${size(allMemory)} memory free`);
      return found.join(" · ");
    },
  },
  methods: {
    memoryOf,
    share,
    size,
    count,
    listed(gpu) {
      return this.large || gpu.pods.length <= LISTED ? gpu.pods : gpu.pods.slice(0, LISTED - 1);
    },
    word: (gpu) => (gpu.over ? "more used than charged" : STATES[gpu.state] ?? gpu.state),
    sizeOf(gpu) {
      if (!gpu.total) return "size unknown";
      return gpu.state === "foreign" ? size(gpu.total) : `${size(gpu.charged)} of ${size(gpu.total)}`;
    },
    filled: (gpu) => (gpu.total ? share(gpu.charged, gpu.total) : gpu.pods.length ? "100%" : "0%"),
    title(pod) {
      const charged = pod.charged ? `, ${size(pod.charged)} charged` : "";
      return `${pod.key}${charged}${pod.scheduler ? `, placed by ${pod.scheduler}` : ""}`;
    },
  },
  template: `
    <component :is="large ? 'div' : 'li'" class="gy-cl-node" :class="tone">
      <div class="gy-cl-node-head">
        <h3 v-if="!large"><a class="gy-link" :href="node.href" :title="node.name">{{ node.name }}</a></h3>
        <span class="gy-cl-stands"><q-icon v-if="node.troubles.length" name="block" aria-hidden="true" />{{ stands }}</span>
      </div>
      <p class="gy-cl-model" :title="node.model">{{ count(node.gpus.length, "GPU") }}{{ node.model ? ", " + node.model : "" }}</p>
      <ul class="gy-cl-gpus" :aria-label="'GPUs of ' + node.name">
        <li v-for="gpu in node.gpus" :key="gpu.index" :class="'gy-cl-is-' + gpu.state">
          <span class="gy-cl-index">{{ gpu.index }}</span>
          <span class="gy-cl-gpu">
            <span class="gy-cl-line">
              <span class="gy-cl-bar" role="img" :aria-label="'GPU ' + gpu.index + ', ' + word(gpu) + ': ' + memoryOf(gpu)" :title="word(gpu) + ': ' + memoryOf(gpu)">
                <span class="gy-cl-charged" :style="{ width: filled(gpu) }"></span>
                <span v-if="gpu.used !== null" class="gy-cl-used" :class="{ 'gy-cl-over': gpu.over }" :style="{ width: share(gpu.used, gpu.total) }"></span>
              </span>
              <span class="gy-cl-size">{{ sizeOf(gpu) }}</span>
              <span v-if="large" class="gy-cl-size">{{ gpu.used === null ? "use not known" : size(gpu.used) + " used" }}</span>
              <span v-if="large || gpu.load !== null" class="gy-cl-load">{{ gpu.load === null ? "" : gpu.load + " %" }}</span>
            </span>
            <span class="gy-cl-pods">
              <span v-if="gpu.state === 'foreign'" class="gy-cl-word">foreign</span>
              <span v-else-if="gpu.state === 'closed'" class="gy-cl-word">closed</span>
              <span v-if="gpu.over" class="gy-cl-word gy-cl-over-word">more used than charged</span>
              <template v-for="pod in listed(gpu)" :key="pod.key">
                <a v-if="pod.href" class="gy-link gy-cl-pod" :href="pod.href" :title="title(pod)">{{ pod.name }} <small>{{ pod.namespace }}</small></a>
                <span v-else class="gy-cl-pod">{{ pod.name }} <small>{{ pod.namespace }}</small></span>
              </template>
              <span v-if="gpu.pods.length > listed(gpu).length" class="gy-soft">and {{ gpu.pods.length - listed(gpu).length }} more</span>
              <span v-if="!gpu.pods.length && gpu.state === 'free'" class="gy-soft">free</span>
            </span>
          </span>
        </li>
      </ul>
      <p v-if="node.elsewhere.length" class="gy-cl-note">On GPUs that nobody has written down:
        <template v-for="pod in node.elsewhere" :key="pod.key"> <a class="gy-link gy-cl-pod" :href="pod.href" :title="title(pod)">{{ pod.name }} <small>{{ pod.namespace }}</small></a></template></p>
      <p class="gy-cl-room">{{ room }}</p>
    </component>`,
};

export default {
  components: { NodeTile },
  props: { begin: String },
  data: () => ({ node: null }),
  watch: { begin: "take" },
  created() {
    this.take(this.begin);
  },
  methods: {
    take(text) {
      const { parts } = JSON.parse(text);
      if (parts?.node) this.node = parts.node;
    },
  },
  template: `<node-tile v-if="node" :node="node" large />`,
};
