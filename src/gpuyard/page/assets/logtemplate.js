// What the log looks like. All that a job printed is bound as text.

export const TEMPLATE = `
<div class="gy-log" @keydown="pressed">
  <div v-show="size" class="gy-log-bar" role="toolbar" :aria-label="'Output of job ' + job">
    <label v-if="attempts > 1" class="gy-log-attempt">Attempt
      <select v-model.number="attempt" @change="open()"><option v-for="n in attempts" :key="n" :value="n">{{ n }}</option></select>
    </label>
    <q-btn v-if="!done" flat dense no-caps icon="play_arrow" label="Follow" :aria-pressed="String(follow)"
      :class="{ 'gy-log-on': follow }" @click="follow ? rest() : toEnd()" />
    <q-btn flat dense no-caps icon="wrap_text" label="Wrap" :aria-pressed="String(wrap)"
      :class="{ 'gy-log-on': wrap }" @click="toggleWrap" />
    <q-btn flat dense no-caps icon="search" label="Search" :aria-expanded="String(searching)" @click="openSearch" />
    <q-btn flat dense no-caps icon="content_copy" label="Copy" title="Copy what is loaded" @click="copy" />
    <a v-if="done" class="gy-log-save" :href="whole" :download="fileName">
      <q-icon name="download" aria-hidden="true" />Download</a>
    <q-btn v-else flat dense no-caps icon="download" label="Download" @click="save" />
    <span class="gy-log-size">{{ sizeText }}</span>
  </div>
  <div v-if="searching" class="gy-log-bar gy-log-search" role="search">
    <input ref="query" type="search" v-model="query" aria-label="Search the output" placeholder="Search all of the output"
      spellcheck="false" autocapitalize="off" @input="later" @keydown.enter.prevent="$event.shiftKey ? step(-1) : step(1)"
      @keydown.esc.stop.prevent="closeSearch" />
    <q-btn flat dense no-caps label="Aa" title="Tell capital letters from small ones" aria-label="Tell capital letters from small ones"
      :aria-pressed="String(exact)" :class="{ 'gy-log-on': exact }" @click="exact = !exact; find()" />
    <q-btn flat dense icon="arrow_upward" aria-label="Earlier match" title="Earlier match (Enter)" :disable="!hits" @click="step(1)" />
    <q-btn flat dense icon="arrow_downward" aria-label="Later match" title="Later match (Shift+Enter)" :disable="!hits" @click="step(-1)" />
    <span class="gy-log-found" role="status">{{ foundText }}</span>
    <q-btn v-if="hunting" flat dense no-caps label="Stop" @click="stopSearch" />
    <q-btn flat dense icon="close" aria-label="Close the search" @click="closeSearch" />
  </div>
  <p v-if="note" class="gy-log-note">{{ note }}</p>
  <p v-if="problem" class="gy-log-note gy-log-problem" role="status">{{ problem }}</p>
  <p v-if="!problem && empty" class="gy-log-note" role="status">{{ empty }}</p>
  <div v-show="size" class="gy-log-box">
    <div ref="view" class="gy-log-view" tabindex="0" role="region" :aria-label="'What job ' + job + ' printed'" @scroll.passive="scrolled"
      :style="{ minHeight: wrap ? null : 'min(58vh, ' + least + 'px)' }">
      <div class="gy-log-space" :style="{ height: height + 'px', minWidth: wrap ? '0' : widest + 'ch' }">
        <div class="gy-log-rows" :style="{ transform: 'translateY(' + top + 'px)' }">
          <div v-for="row in rows" :key="row.key" class="gy-log-row" :class="{ 'gy-log-here': row.here, 'gy-log-told': row.note }"><span
            v-for="(run, i) in row.runs" :key="i" :class="run.names" :style="run.look">{{ run.text }}</span></div>
        </div>
      </div>
      <span ref="probe" class="gy-log-row gy-log-probe" aria-hidden="true">MMMMMMMMMMMMMMMMMMMM</span>
    </div>
    <q-btn v-if="!atEnd" class="gy-log-end" no-caps unelevated dense icon="arrow_downward" label="Jump to the end" @click="toEnd" />
  </div>
</div>`;
