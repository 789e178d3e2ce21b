// A job's output as the browser reads it: pieces by range, a window of lines on it, and a search through all of it.
//
// Lines stay bytes until somebody looks at them, so that megabytes cost little. Where the daemon left a part out to keep
// to its limit, a range has zeros: they are found, skipped and told of.

import { plain } from "/page/assets/ansi.js";
import { Screen, START, screenOf } from "/page/assets/logscreen.js";

export const PIECE = 2 ** 18;
const FIRST = 2 ** 16; // of an end that nobody has seen yet: a thousand lines are there soon
const SEARCHED = 2 ** 20;
const MOST_BYTES = 2 ** 24;
const MOST_LINES = 400_000; // more would be higher than browsers can scroll
const LONG = 2 ** 14; // bytes of a line in which it matters where something is
const BLOCK = 4096;
const HEAD = 2 ** 21; // more than is ever kept before a part that was left out
const NEWLINE = 10;
const RETURN = 13;
const decoder = new TextDecoder();
const encoder = new TextEncoder();

/** The daemon refused, with a sentence. */
export class Refusal extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** The output of one attempt. */
export class Source {
  constructor(job, attempt) {
    this.url = `/api/v1/jobs/${encodeURIComponent(job)}/log?attempt=${attempt}`;
  }

  /** The last bytes, and where they begin. */
  async tail(length, signal) {
    const answer = await this.ask("", { Range: `bytes=-${length}` }, signal);
    if (answer.status !== 206) return { begin: 0, bytes: await read(answer), size: 0 }; // nothing was printed yet
    const [, begin, size] = /bytes (\d+)-\d+\/(\d+)/.exec(answer.headers.get("Content-Range"));
    return { begin: Number(begin), bytes: await read(answer), size: Number(size) };
  }

  /** All bytes of a range, zeros where some were left out. */
  async range(begin, end, signal) {
    return read(await this.ask("", { Range: `bytes=${begin}-${end - 1}` }, signal));
  }

  /** What follows an offset, after waiting for it if there is nothing yet. */
  async after(offset, wait, signal, size = PIECE) {
    const answer = await this.ask(`&offset=${offset}&size=${size}&wait=${wait}`, {}, signal);
    const told = (name) => Number(answer.headers.get(name));
    let [bytes, begin, end] = [await read(answer), offset, told("X-Next-Offset")];
    if (end - begin !== bytes.length) {
      const notice = /^\n\[gpuyard: \d+ bytes left out\]\n/.exec(decoder.decode(bytes.subarray(0, 80)));
      bytes = bytes.subarray(notice ? notice[0].length : 0);
      begin = end - bytes.length; // of a file that was cut short by its job this is before the offset
    }
    return { begin, end, bytes, size: told("X-Log-Size"), state: answer.headers.get("X-Job-State") };
  }

  async ask(query, headers, signal) {
    const answer = await fetch(this.url + query, { headers, signal, cache: "no-store" });
    if (answer.ok) return answer;
    if (answer.status >= 500) throw new Error(`status ${answer.status}`);
    let sentence = `The daemon answered with status ${answer.status}.`;
    try {
      sentence = (await answer.json()).detail;
    } catch {
      // not one of its own answers: the status must do
    }
    throw new Refusal(answer.status, sentence);
  }
}

async function read(answer) {
  return new Uint8Array(await answer.arrayBuffer());
}

/** The last part of these bytes that was left out, as `[begin, end]`; null if there is none. */
export function hole(bytes) {
  for (let at = bytes.length - 1; at >= 0; at -= BLOCK / 2) {
    if (bytes[at] !== 0) continue;
    let [begin, end] = [at, at];
    while (begin > 0 && bytes[begin - 1] === 0) begin--;
    while (end < bytes.length && bytes[end] === 0) end++;
    if (end - begin >= BLOCK) return [begin, end];
    at = begin;
  }
  return null;
}

/** Some lines of an attempt's output, one after another, from `begin` to `end` of the file. */
export class Window {
  constructor(source) {
    this.source = source;
    this.clear(0);
  }

  /** Forget all lines, and stand at an offset. */
  clear(at) {
    [this.begin, this.end, this.lines, this.cursor] = [at, at, [], START];
    this.gap = null; // of a part before `begin` that was left out: where it begins
  }

  get full() {
    return this.end - this.begin > MOST_BYTES || this.lines.length > MOST_LINES;
  }

  text(line) {
    return line.note ?? decoder.decode(line.bytes.subarray(line.from, line.to));
  }

  /** Begin anew with the end of the file; its size. */
  async open(signal) {
    const { begin, bytes, size } = await this.source.tail(FIRST, signal);
    this.clear(begin + bytes.length);
    this.#prepend(begin, bytes);
    return size;
  }

  /** Begin anew with what is around an offset. */
  async around(offset, size, signal) {
    const begin = Math.max(0, offset - PIECE / 2);
    const end = Math.min(size, begin + PIECE);
    const bytes = await this.source.range(begin, end, signal);
    const left = hole(bytes);
    const last = left && begin + left[1] > offset ? left[0] : end < size ? bytes.lastIndexOf(NEWLINE) + 1 : 0;
    const kept = begin + last > offset ? bytes.subarray(0, last) : bytes; // its line may be longer than all of this
    this.clear(begin + kept.length);
    this.#prepend(begin, kept, offset);
  }

  /** Load what is before; how many lines that were, and how many were dropped at the other end. */
  async earlier(signal) {
    if (this.gap === "unknown") this.gap = (await this.source.after(0, 0, signal, HEAD)).end;
    if (this.gap !== null) return this.#skip();
    const begin = Math.max(0, this.begin - PIECE);
    const bytes = await this.source.range(begin, this.begin, signal);
    return this.#prepend(begin, bytes);
  }

  /** Add what follows; how many lines were dropped at the beginning. */
  append({ begin, bytes, end }) {
    if (begin > this.end) {
      this.lines.push(leftOut(this.end, begin));
      this.cursor = { ...START, style: this.cursor.style };
    }
    const screen = new Screen(this.lines, this.cursor);
    screen.write(bytes, end - bytes.length);
    this.cursor = screen.cursor;
    this.end = end;
    if (!this.full) return 0;
    const dropped = Math.max(this.#lineAt(end - MOST_BYTES / 2), this.lines.length - MOST_LINES / 2);
    this.lines.splice(0, dropped);
    [this.begin, this.gap] = [this.lines[0].at, null];
    return dropped;
  }

  /** Load what follows; how many lines were dropped at the beginning. */
  async later(signal) {
    return this.append(await this.source.after(this.end, 0, signal));
  }

  /** The index of the line that an offset is in; -1 if that is not loaded. */
  find(offset) {
    return offset < this.begin || offset >= this.end ? -1 : Math.max(0, this.#lineAt(offset));
  }

  #lineAt(offset) {
    let [low, high] = [0, this.lines.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.lines[middle].at <= offset) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /** Go over a part that was left out. */
  #skip() {
    const begin = Math.min(this.gap, this.begin);
    const line = leftOut(begin, this.begin);
    [this.gap, this.begin] = [null, begin];
    this.lines.unshift(line);
    return { added: 1, dropped: 0 };
  }

  /** Add what is before; of a line that was begun earlier only what an offset, if there is one, is in. */
  #prepend(begin, bytes, offset = Infinity) {
    const left = hole(bytes);
    if (left) {
      this.gap = left[0] > 0 ? begin + left[0] : "unknown";
      [begin, bytes] = [begin + left[1], bytes.subarray(left[1])];
    } else if (begin > 0) {
      const first = startOfLine(bytes.subarray(0, offset - begin + 1));
      [begin, bytes] = [begin + first, bytes.subarray(first)];
    }
    const last = !this.lines.length;
    const screen = screenOf(bytes, begin);
    if (last) this.cursor = screen.cursor;
    const found = screen.lines;
    this.lines = found.concat(this.lines);
    this.begin = begin;
    let dropped = 0;
    if (this.full && !last) {
      const keep = Math.max(found.length + 1, Math.min(this.#lineAt(begin + MOST_BYTES / 2), MOST_LINES / 2));
      dropped = Math.max(0, this.lines.length - keep);
      if (dropped) [this.end, this.cursor] = [this.lines[keep].at, { ...START, style: this.lines[keep].style }];
      this.lines.length -= dropped;
    }
    return { added: found.length, dropped };
  }
}

/** A line that stands for what is not there. */
function leftOut(begin, end) {
  const note = `[${(end - begin).toLocaleString()} bytes were left out here, to keep to the limit of a job's output]`;
  return { at: begin, from: 0, to: 0, note };
}

/** Where the first whole line begins; in a line longer than all of this, where it was last written anew. */
function startOfLine(bytes) {
  const newline = bytes.indexOf(NEWLINE);
  if (newline >= 0 && newline + 1 < bytes.length) return newline + 1;
  const written = bytes.indexOf(RETURN);
  if (written >= 0) return written + 1 < bytes.length ? written + 1 : 0;
  let first = 0;
  while (first < 4 && (bytes[first] & 0xc0) === 0x80) first++; // not amidst a character
  return first;
}

// -- searching ------------------------------------------------------------------------------------

const COLOURS = /\x1b\[[0-?]*[ -/]*[@-~]/g;

/** Offsets of the lines in these bytes that contain a text, of long ones that of the text, the last first. */
export function matching(bytes, begin, text, anyCase) {
  const wanted = folded(text, anyCase);
  const has = (part) => folded(part, anyCase).includes(wanted);
  if (!has(decoder.decode(bytes).replace(COLOURS, ""))) return []; // which is quick, and so for most pieces
  const found = [];
  for (const { at, bytes: held, from, to, again } of screenOf(bytes, begin, false).lines) {
    const line = decoder.decode(held.subarray(from, to));
    const bare = line.replace(COLOURS, "");
    if (!has(bare) || (/[\x1b\r\b]/.test(bare) && !has(plain(line)))) continue;
    found.push(at + (to - from > LONG && !again ? placeIn(line, wanted, anyCase) : 0));
  }
  return found.reverse();
}

/** How many bytes of a line are before a text; none if there are colours amidst it. */
function placeIn(line, wanted, anyCase) {
  return encoder.encode(line.slice(0, Math.max(0, folded(line, anyCase).indexOf(wanted)))).length;
}

export function folded(text, anyCase) {
  return anyCase ? text.toLowerCase() : text;
}

/** Look for a text from the end of the file backwards: `told(offsets, where)` hears of each piece, none is kept. */
export async function search(source, size, text, anyCase, signal, told) {
  let coming = size > 0 ? before(source, size, signal) : null;
  while (coming) {
    const { begin, bytes, next } = await coming;
    coming = next > 0 ? before(source, next, signal) : null; // is on its way while this one is looked through
    coming?.catch(() => {}); // it is told of when it is waited for
    told(matching(bytes, begin, text, anyCase), next);
    await new Promise((resolve) => setTimeout(resolve)); // the page must stay fluid
  }
}

/** Whole lines that end at an offset, and where those before them end. */
async function before(source, end, signal) {
  const begin = Math.max(0, end - SEARCHED);
  const bytes = await source.range(begin, end, signal);
  const left = hole(bytes);
  if (left) {
    const next = left[0] > 0 ? begin + left[0] : Math.min(begin, (await source.after(0, 0, signal, HEAD)).end);
    return { begin: begin + left[1], bytes: bytes.subarray(left[1]), next };
  }
  const first = begin > 0 ? startOfLine(bytes) : 0;
  return { begin: begin + first, bytes: bytes.subarray(first), next: begin && Math.min(begin + first, end - 1) };
}
