// Bytes that a job printed as lines, where the cursor may go up again: nested progress bars write some rows over and over.
//
// A line that was written once is a view on the bytes that it came in. One that was written again is the last few things
// that were written to it, one over the other. A move up or down leads to the first column: bars begin there anyway.

import { parse } from "/page/assets/ansi.js";

const REACH = 100; // rows that the cursor can go up, as on a high terminal
const KEPT = 32; // things written to a row that still count
const LONGEST = 2 ** 16; // bytes of a line that grows, before what was overwritten in it is forgotten
const NEWLINE = 10;
const RETURN = 13;
const ESC = 27;
const MOVE = /\x1b\[(\d*)([ABEF])/g;
const BEGUN = /\x1b(?:\[[\d;:?]*)?$/;
const NOTHING = new Uint8Array();
const OVER = new Uint8Array([RETURN]);
export const START = Object.freeze({ up: 0, fresh: true, held: NOTHING, style: undefined });
const decoder = new TextDecoder();
const bytewise = new TextDecoder("latin1"); // a character for each byte

/** Lines that grow as a terminal's rows do. */
export class Screen {
  /** Go on after some lines, as the cursor of the screen before says; for who looks for text only, without styles. */
  constructor(lines = [], cursor = START, styles = true) {
    [this.lines, this.row, this.styles] = [lines, lines.length - cursor.up, styles];
    [this.fresh, this.held, this.style] = [cursor.fresh, cursor.held, cursor.style];
    this.again = new Map(); // what was written to rows that were there before
  }

  /** Where writing goes on: how many rows above the end, whether at a row's beginning, after which bytes, in which style. */
  get cursor() {
    return { up: this.lines.length - this.row, fresh: this.fresh, held: this.held, style: this.style };
  }

  /** Write bytes that begin at an offset of the file. */
  write(bytes, begin) {
    if (this.held.length) [bytes, begin] = [joined([this.held, bytes]), begin - this.held.length];
    bytes = this.#hold(bytes);
    this.coloured = this.styles && (this.style !== undefined || bytes.includes(ESC));
    let from = 0;
    for (const found of bytes.includes(ESC) ? bytewise.decode(bytes).matchAll(MOVE) : []) {
      this.#print(bytes.subarray(0, found.index), from, begin);
      this.#move(Math.max(1, Number(found[1])) * ("AF".includes(found[2]) ? -1 : 1));
      from = found.index + found[0].length;
    }
    this.#print(bytes, from, begin);
    for (const [row, parts] of this.again) this.lines[row] = rewritten(this.lines[row], parts);
    this.again.clear();
  }

  /** Keep an escape sequence that has only begun until the rest of it comes. */
  #hold(bytes) {
    const begun = BEGUN.exec(bytewise.decode(bytes.subarray(-32)));
    this.held = begun ? bytes.slice(bytes.length - begun[0].length) : NOTHING;
    return bytes.subarray(0, bytes.length - this.held.length);
  }

  #print(bytes, from, begin) {
    while (from < bytes.length) {
      const newline = bytes.indexOf(NEWLINE, from);
      const to = newline < 0 ? bytes.length : newline;
      this.#put({ at: begin + from, bytes, from, to, style: this.style });
      this.fresh = newline >= 0;
      if (this.fresh) this.row++;
      from = to + 1;
    }
  }

  #put(line) {
    if (this.coloured) this.style = after(line);
    if (this.row === this.lines.length) this.lines.push(line);
    else if (line.to > line.from) this.#over(line);
  }

  #over({ bytes, from, to }) {
    const old = this.lines[this.row];
    if (!this.again.has(this.row)) this.again.set(this.row, [shortened(old.bytes.subarray(old.from, old.to))]);
    const parts = this.again.get(this.row);
    parts.push(this.fresh && bytes[from] !== RETURN ? OVER : NOTHING, bytes.subarray(from, to));
    if (parts.length > 4 * KEPT) parts.splice(0, parts.length - 2 * KEPT);
  }

  #move(by) {
    for (let left = by; left < 0 && this.#reaches(this.row - 1); left++) this.row--;
    if (by > 0) this.row = Math.min(this.lines.length, this.row + by);
    this.fresh = true;
  }

  #reaches(row) {
    return row >= 0 && this.lines.length - row <= REACH && !this.lines[row].note;
  }
}

/** A piece of a file as a screen. Of rows that are before it, those are there, blank at first, that it writes to. */
export function screenOf(bytes, begin, styles = true) {
  const above = begin > 0 && bytes.includes(ESC) ? Array.from({ length: REACH }, () => blank(begin)) : [];
  const screen = new Screen(above, START, styles);
  screen.write(bytes, begin);
  const { up } = screen.cursor;
  screen.lines = screen.lines.filter((line, row) => !line.blank || row >= screen.row);
  screen.row = screen.lines.length - up;
  return screen;
}

function blank(at) {
  return { at, bytes: NOTHING, from: 0, to: 0, blank: true };
}

function rewritten(line, parts) {
  const bytes = joined(parts);
  return { at: line.at, bytes, from: 0, to: bytes.length, style: line.style, again: true };
}

/** The style with which the next line begins. */
function after(line) {
  const bytes = line.bytes.subarray(line.from, line.to);
  const last = bytes.lastIndexOf(ESC);
  if (last < 0) return line.style;
  const code = decoder.decode(bytes.subarray(last + 1, last + 5));
  if (code.startsWith("[0m") || code.startsWith("[m")) return undefined;
  const { style } = parse(decoder.decode(bytes), line.style);
  return Object.keys(style).length ? style : undefined;
}

/** A line that grows, without what it has written over long ago. */
function shortened(bytes) {
  if (bytes.length <= LONGEST) return bytes;
  const from = bytes.indexOf(RETURN, bytes.length - LONGEST / 2);
  return from < 0 ? bytes : bytes.slice(from);
}

function joined(parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}
