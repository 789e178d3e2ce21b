// A file for the simulator: sent as it is, with how much of it has gone; the server answers with an id, or a sentence.
export default {
  template: `
    <div class="gy-sim-upload">
      <label class="gy-sim-file">
        <span>Trace file</span>
        <input type="file" @change="send" :disabled="busy">
      </label>
      <div role="status" :class="{ 'gy-refusal': failed }">{{ words }}</div>
    </div>`,
  props: { known: String },
  data() {
    return { busy: false, failed: false, words: this.known };
  },
  methods: {
    send(event) {
      const file = event.target.files[0];
      if (!file) return;
      if (file.size > 64 * 2 ** 20) {
        this.say("A file of at most 64 MB can be simulated here; compress it, or use a shell.", true);
        return;
      }
      const request = new XMLHttpRequest();
      request.open("POST", `/page/upload?name=${encodeURIComponent(file.name)}`);
      request.setRequestHeader("Content-Type", "application/octet-stream");
      request.upload.onprogress = (told) => this.say(`${Math.round((100 * told.loaded) / told.total)} % sent`);
      request.onload = () => this.answered(request);
      request.onerror = () => this.end("The file could not be sent; try again in a moment.", true);
      this.busy = true;
      this.say("sending");
      request.send(file);
    },
    answered(request) {
      let told = {};
      try {
        told = JSON.parse(request.responseText);
      } catch {
        told = { detail: `The file was not taken (status ${request.status}).` };
      }
      if (request.status !== 200) {
        this.end(told.detail, true);
        return;
      }
      this.end(`${told.name}, ${told.size.toLocaleString("en")} bytes, is ready.`);
      this.$emit("uploaded", { id: told.id });
    },
    end(words, failed = false) {
      this.busy = false;
      this.say(words, failed);
    },
    say(words, failed = false) {
      this.words = words;
      this.failed = failed;
    },
  },
};
