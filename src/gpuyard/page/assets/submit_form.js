// The form of a job. What is typed lives here and in the browser's storage, so that neither a reload nor a restart of
// the daemon loses it; the server reads it as it is typed, and tells what is wrong and what the command line would be.
// All that users wrote is shown by {{ }} or in fields: as text.
const WAIT = 120; // milliseconds after the last key before the form is read

const FIELD = {
  props: { field: Object, value: [String, Boolean], error: String, warning: String, note: String, off: Boolean },
  emits: ["change"],
  computed: {
    id() {
      return `f-${this.field.name}`;
    },
    described() {
      return [`${this.id}-hint`, this.error && `${this.id}-error`, this.warning && `${this.id}-warning`].filter(Boolean).join(" ");
    },
  },
  methods: {
    step(by) {
      this.$emit("change", String(Math.max(1, (parseInt(this.value, 10) || 0) + by)));
    },
  },
  template: `
    <div class="gy-new-field" :class="['gy-new-field-' + field.kind, 'gy-new-field-of-' + field.name, { 'gy-new-wrong': error }]">
      <template v-if="field.kind === 'tick'">
        <label class="gy-new-tick">
          <input type="checkbox" :id="id" :checked="value === true" :disabled="off" :aria-describedby="described"
            @change="$emit('change', $event.target.checked)">
          <span>{{ field.label }}</span>
        </label>
      </template>
      <template v-else>
        <label :for="id">{{ field.label }}</label>
        <select v-if="field.kind === 'choice'" :id="id" :value="value" :disabled="off" :aria-describedby="described"
            @change="$emit('change', $event.target.value)">
          <option v-for="choice in field.choices" :key="choice" :value="choice">{{ choice || 'as usual' }}</option>
        </select>
        <textarea v-else-if="field.kind === 'area'" :id="id" :value="value" :placeholder="field.example" :disabled="off"
          :rows="Math.min(8, Math.max(field.name === 'command' ? 2 : 3, String(value || '').split('\\n').length))"
          spellcheck="false" autocapitalize="off" autocomplete="off" :aria-describedby="described"
          :aria-invalid="error ? 'true' : 'false'" :aria-required="field.name === 'command'"
          @input="$emit('change', $event.target.value)"></textarea>
        <div v-else class="gy-new-entry">
          <button v-if="field.kind === 'number'" type="button" class="gy-new-step" :aria-label="'Fewer ' + field.label" @click="step(-1)">−</button>
          <input type="text" :id="id" :value="value" :placeholder="field.example" :disabled="off"
            :inputmode="field.kind === 'number' ? 'numeric' : 'text'" spellcheck="false" autocapitalize="off"
            autocomplete="off" :aria-describedby="described" :aria-invalid="error ? 'true' : 'false'"
            @input="$emit('change', $event.target.value)">
          <button v-if="field.kind === 'number'" type="button" class="gy-new-step" :aria-label="'More ' + field.label" @click="step(1)">+</button>
        </div>
      </template>
      <p class="gy-new-hint" :id="id + '-hint'">{{ field.hint }}</p>
      <p v-if="note && !error" class="gy-new-note">{{ note }}</p>
      <p v-if="error" class="gy-new-error" :id="id + '-error'">{{ error }}</p>
      <p v-else-if="warning" class="gy-new-warning" :id="id + '-warning'">{{ warning }}</p>
      <slot></slot>
    </div>`,
};

function fresh() {
  const bytes = crypto.getRandomValues(new Uint8Array(16)); // randomUUID is not there without TLS
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export default {
  components: { "gy-new-field": FIELD },
  props: { main: Array, groups: Array, user: String, start: Object, copy: String, kept: Boolean, told: Object, outlook: String },
  emits: ["typed", "send"],
  data() {
    return { form: {}, key: fresh(), tried: false, touched: {}, answers: {}, busy: false, queued: [], open: {}, restored: false };
  },
  computed: {
    place() {
      return `gpuyard_draft:${this.user}:${this.copy}`;
    },
    errors() {
      const known = { ...(this.told.errors || {}), ...this.answers };
      if (!this.tried && !this.touched.command) delete known.command;
      return known;
    },
    wrong() {
      return Object.keys(this.told.errors || {}).length;
    },
    mac() {
      return navigator.platform.startsWith("Mac");
    },
    all() {
      return [...this.main, ...this.groups.flatMap((group) => group.fields)];
    },
  },
  mounted() {
    this.form = this.draft() || this.initial();
    for (const group of this.groups) this.open[group.title] = this.copy === "" && group.fields.some((field) => this.isSet(field));
    this.read();
    this.$nextTick(() => this.$el.querySelector("#f-command").focus());
  },
  beforeUnmount() {
    clearTimeout(this.timer);
  },
  methods: {
    initial() {
      const form = {};
      for (const field of this.all) form[field.name] = field.kind === "tick" ? false : "";
      const directory = localStorage.getItem(`gpuyard_directory:${this.user}`) || "~";
      return { ...form, gpus: "1", directory, ...this.start, kept: this.kept };
    },
    draft() {
      try {
        const found = JSON.parse(localStorage.getItem(this.place));
        if (!found || !found.form.command) return null;
        this.key = found.key;
        this.restored = true;
        return { ...this.initial(), ...found.form };
      } catch {
        return null; // there is none, or none that this version can read
      }
    },
    keep() {
      const { variables, ...form } = this.form; // values of variables may be secrets
      localStorage.setItem(this.place, JSON.stringify({ form, key: this.key }));
    },
    change(name, value) {
      this.form[name] = value;
      this.touched[name] = true;
      this.answers = {};
      this.key = fresh();
      this.keep();
      clearTimeout(this.timer);
      this.timer = setTimeout(this.read, WAIT);
    },
    read() {
      this.$emit("typed", { form: { ...this.form } });
    },
    wrap() {
      this.change("command", this.told.wrap);
    },
    isSet(field) {
      const value = this.form[field.name];
      return value !== "" && value !== false && value !== undefined && !(field.name === "directory" && value === "~");
    },
    summary(group) {
      return group.fields.filter(this.isSet).map((field) => {
        const value = this.form[field.name];
        if (field.name === "variables") return field.label;
        return value === true ? field.label : `${field.label} ${value}`;
      }).join(" · ");
    },
    wrongIn(group) {
      return group.fields.some((field) => this.errors[field.name]);
    },
    send(another) {
      if (this.busy) return;
      this.tried = true;
      clearTimeout(this.timer);
      this.read(); // or what was wrong before the last letters would still be told
      this.busy = true;
      this.keep();
      this.$emit("send", { form: { ...this.form }, key: this.key, another });
    },
    refused(errors) {
      this.busy = false;
      this.answers = errors;
      for (const group of this.groups) if (this.wrongIn(group)) this.open[group.title] = true;
      this.$nextTick(() => {
        const first = this.$el.querySelector(".gy-new-wrong input, .gy-new-wrong textarea, .gy-new-wrong select, .gy-refusal");
        if (first) first.focus();
      });
    },
    done(id, path, another) {
      this.busy = false;
      localStorage.removeItem(this.place);
      localStorage.setItem(`gpuyard_directory:${this.user}`, this.form.directory || "~");
      if (!another) {
        location.assign(path);
        return;
      }
      this.queued = [{ id, path }, ...this.queued].slice(0, 5);
      this.key = fresh();
      this.touched = {};
      this.tried = false;
      this.$el.querySelector("#f-command").focus();
    },
    clear() {
      localStorage.removeItem(this.place);
      this.form = this.initial();
      this.restored = this.tried = false;
      this.touched = {};
      this.answers = {};
      this.key = fresh();
      this.read();
      this.$el.querySelector("#f-command").focus();
    },
    keys(event) {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.send(false);
      }
    },
    copyLine(event) {
      gyCopy(event.currentTarget.parentElement.querySelector("code"));
    },
  },
  template: `
    <form class="gy-new-form" novalidate aria-label="A new job" @submit.prevent="send(false)" @keydown="keys">
      <div class="gy-new-fields">
        <p v-if="copy" class="gy-new-copy">
          <span>Like <a :href="'/jobs/' + encodeURIComponent(copy)">job {{ copy }}</a>: change what should be different.</span>
          <label v-if="kept" class="gy-new-tick">
            <input type="checkbox" :checked="form.kept === true" @change="change('kept', $event.target.checked)">
            <span>With its environment too</span>
          </label>
        </p>
        <p v-if="restored" class="gy-new-restored">
          This is what you typed before.
          <button type="button" class="gy-new-plain" @click="clear">Begin anew</button>
        </p>
        <div class="gy-card gy-new-main-fields">
          <gy-new-field v-for="field in main" :key="field.name" :field="field" :value="form[field.name]"
              :error="errors[field.name]" :warning="(told.warnings || {})[field.name]" @change="change(field.name, $event)">
            <div v-if="field.name === 'command' && told.wrap" class="gy-new-offer">
              <button type="button" class="gy-new-plain" @click="wrap">Let a shell read it</button>
              <code class="gy-code">{{ told.wrap }}</code>
            </div>
          </gy-new-field>
        </div>
        <details v-for="group in groups" :key="group.title" class="gy-new-group" :open="open[group.title]"
            @toggle="open[group.title] = $event.target.open">
          <summary>
            <span class="gy-new-group-title">{{ group.title }}</span>
            <span v-if="wrongIn(group)" class="gy-new-group-set gy-new-error">Something is wrong here</span>
            <span v-else-if="summary(group)" class="gy-new-group-set">{{ summary(group) }}</span>
            <span v-else class="gy-new-group-inside">{{ group.inside }}</span>
          </summary>
          <div class="gy-new-grid">
            <gy-new-field v-for="field in group.fields" :key="field.name" :field="field" :value="form[field.name]"
              :error="errors[field.name]" :warning="(told.warnings || {})[field.name]" :note="(told.notes || {})[field.name]"
              :off="field.name === 'variables' && kept && form.kept" @change="change(field.name, $event)"></gy-new-field>
          </div>
        </details>
      </div>
      <aside class="gy-new-aside" aria-label="What it will do">
        <div class="gy-card">
          <h2 class="gy-h2">The same on the command line</h2>
          <div class="gy-command">
            <code class="gy-code gy-new-line" tabindex="0">{{ told.line }}</code>
            <button type="button" class="gy-new-plain" aria-label="Copy the command" @click="copyLine">Copy</button>
          </div>
          <p v-if="wrong && (touched.command || tried)" class="gy-new-hint">Not complete: what is wrong above is left out.</p>
          <p v-else class="gy-new-hint">In a shell, it also gets that shell's environment.</p>
        </div>
        <div class="gy-card">
          <h2 class="gy-h2">The queue now</h2>
          <p>{{ outlook }}</p>
          <p v-if="told.prospect">{{ told.prospect }}</p>
        </div>
        <p v-if="errors['']" class="gy-refusal" role="alert" tabindex="-1">{{ errors[''] }}</p>
        <div class="gy-new-send">
          <button type="submit" class="gy-submit" :disabled="busy">{{ busy ? 'Submitting…' : 'Submit' }}</button>
          <button type="button" class="gy-new-plain" :disabled="busy" @click="send(true)">Submit, and another</button>
        </div>
        <p class="gy-new-hint">{{ mac ? '⌘' : 'Ctrl' }}+Enter submits, too.</p>
        <ul class="gy-new-queued" role="status">
          <li v-for="job in queued" :key="job.id"><a :href="job.path">Job {{ job.id }}</a> is queued.</li>
        </ul>
      </aside>
    </form>`,
};
