// How long ago something was; it ticks here, so that nobody need be sent anything for it.
import { duration } from "/page/assets/words.js";

export default {
  props: { since: Number, now: Number },
  template: `<span>{{ text }}</span>`,
  data: () => ({ text: "" }),
  watch: {
    since: "tick",
  },
  created() {
    this.ahead = Date.now() / 1000 - this.now; // of the daemon's clock
    this.tick();
    this.ticking = setInterval(() => this.tick(), 1000);
  },
  beforeUnmount() {
    clearInterval(this.ticking);
  },
  methods: {
    tick() {
      this.text = duration(Date.now() / 1000 - this.ahead - this.since);
    },
  },
};
