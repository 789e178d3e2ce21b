// One of several, each with a line on what it does: radio buttons, or for who may not choose, a list with a mark.
export default {
  template: `
    <fieldset v-if="free" class="gy-set-choices">
      <legend>{{ title }}</legend>
      <div class="gy-set-choices-list">
        <label v-for="one in options" :key="one.name" class="gy-set-choice" :class="{ 'gy-set-chosen': one.name === current }">
          <input type="radio" :name="title" :value="one.name" :checked="one.name === current"
            :disabled="barred.includes(one.name)" @change="pick(one.name)" />
          <span>
            <span class="gy-set-choice-name">{{ one.name }}</span>
            <span v-if="one.name === present" class="gy-chip gy-running">in force</span>
            <span v-if="one.mark" class="gy-chip">{{ one.mark }}</span>
            <span class="gy-set-choice-doc">{{ one.doc }}</span>
          </span>
        </label>
      </div>
    </fieldset>
    <section v-else class="gy-set-choices" :aria-label="title">
      <h3 class="gy-h3">{{ title }}</h3>
      <ul class="gy-set-choices-list" tabindex="0" :aria-label="title">
        <li v-for="one in options" :key="one.name" class="gy-set-choice" :class="{ 'gy-set-chosen': one.name === present }">
          <span>
            <span class="gy-set-choice-name">{{ one.name }}</span>
            <span v-if="one.name === present" class="gy-chip gy-running">in force</span>
            <span v-if="one.mark" class="gy-chip">{{ one.mark }}</span>
            <span class="gy-set-choice-doc">{{ one.doc }}</span>
          </span>
        </li>
      </ul>
    </section>
  `,
  props: { title: String, options: Array, chosen: String, present: String, barred: { type: Array, default: () => [] }, free: Boolean },
  emits: ["choose"],
  data: () => ({ picked: null }), // at once, before the server has heard of it
  computed: {
    current() { return this.picked ?? this.chosen; },
  },
  watch: {
    chosen() { this.picked = null; },
  },
  methods: {
    pick(name) {
      this.picked = name;
      this.$emit("choose", name);
    },
  },
};
