// What the charts of a simulation have in common: they fetch what they show, fill the room there is, and follow the theme.
import { echarts } from "nicegui-echart";

/** For a component with an element `chart`, and methods `load` and `draw`. */
export const FETCHED = {
  props: { url: String },
  mounted() {
    this.chart = echarts.init(this.$refs.chart);
    this.sizes = new ResizeObserver(() => this.chart.resize());
    this.sizes.observe(this.$refs.chart);
    this.theme = new MutationObserver(() => this.draw());
    this.theme.observe(document.body, { attributes: true, attributeFilter: ["class"] });
    this.$watch("url", this.load);
  },
  beforeUnmount() {
    this.sizes?.disconnect();
    this.theme?.disconnect();
    this.chart?.dispose();
  },
};
