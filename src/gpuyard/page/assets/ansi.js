// What a terminal would show of a line that a job printed, as pure functions: text in, runs of text with a style out.
//
// Colours and styles (SGR) are kept, `\r`, `\b` and moves within the line overwrite as in a terminal, and every other
// escape sequence is dropped. Nothing here knows HTML: whoever shows runs makes text nodes of them.

const PLAIN = Object.freeze({});
const SPECIAL = /[\u0000-\u0008\u000a-\u001f\u007f-\u009f\t]/;
// CSI (parameters, final), OSC and other strings up to BEL or ST (or the end), charsets, any other two characters.
const ESCAPE = /\x1b(?:\[([0-?]*)[ -/]*([@-~])|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|[ -/]+[0-~]|\[[0-?]*[ -/]*$|[^[\]PX^_]|$)|\x1b/g;
const SEGMENTS = 8; // overwritten parts of a line that still count: a progress bar may have thousands of them
const TAB = 8;

/** The runs of a line: `[{text, style}]`, the style after it, and how many columns it takes. */
export function parse(text, style = PLAIN) {
  if (text.endsWith("\r")) text = text.slice(0, -1);
  if (!SPECIAL.test(text)) return { runs: text ? [{ text, style }] : [], style, columns: columnsOf(text) };
  return overwrites(text) ? painted(latest(text), style) : written(text, style);
}

/** The text of a line without any escape sequence, as it would be seen. */
export function plain(text) {
  return SPECIAL.test(text) ? parse(text).runs.map((run) => run.text).join("") : text;
}

/** How many columns a text takes: 2 for each wide character, none for a combining one. */
export function columnsOf(text) {
  if (/^[\x20-\x7e]*$/.test(text)) return text.length;
  let columns = 0;
  for (const char of text) columns += width(char.codePointAt(0));
  return columns;
}

/** Runs cut into rows of so many columns each; at least one row. */
export function wrapped(runs, columns) {
  const rows = [[]];
  let left = columns;
  for (const { text, style } of runs) {
    let rest = text;
    while (rest) {
      let [cut, used] = fitting(rest, left);
      if (!cut && left === columns) [cut, used] = [rest.codePointAt(0) > 0xffff ? 2 : 1, columns]; // wider than a row
      if (cut) rows.at(-1).push({ text: rest.slice(0, cut), style });
      rest = rest.slice(cut);
      left -= used;
      if (rest) {
        rows.push([]);
        left = columns;
      }
    }
  }
  return rows;
}

/** How many rows of so many columns a text of so many takes; exact but for wide characters at a row's end. */
export function rowsOf(columns, width) {
  return Math.max(1, Math.ceil(columns / width));
}

function fitting(text, columns) {
  const ascii = /^[\x20-\x7e]*/.exec(text.slice(0, columns))[0].length;
  if (ascii === columns || ascii === text.length) return [ascii, ascii];
  let [cut, used] = [ascii, ascii];
  for (const char of text.slice(ascii, ascii + 2 * columns)) {
    const more = width(char.codePointAt(0));
    if (used + more > columns) break;
    cut += char.length;
    used += more;
  }
  return [cut, used];
}

function width(code) {
  if (code < 0x300) return 1;
  if (code < 0x370 || code === 0x200d || (code >= 0xfe00 && code <= 0xfe0f) || (code >= 0x20d0 && code <= 0x20ff)) return 0;
  if (code < 0x1100) return 1;
  const wide =
    code <= 0x115f || (code >= 0x2e80 && code <= 0xa4cf) || (code >= 0xac00 && code <= 0xd7a3) ||
    (code >= 0xf900 && code <= 0xfaff) || (code >= 0xfe30 && code <= 0xfe6f) || (code >= 0xff00 && code <= 0xff60) ||
    (code >= 0x1f300 && code <= 0x1faff) || (code >= 0x20000 && code <= 0x3fffd);
  return wide ? 2 : 1;
}

function overwrites(text) {
  return /[\r\b]|\x1b\[[0-?]*[CDGKPX@]/.test(text);
}

/** The last few parts of a line that was written over and over. */
function latest(text) {
  let begin = text.length;
  for (let part = 0; part < SEGMENTS && begin > 0; part++) begin = text.lastIndexOf("\r", begin - 1);
  return begin > 0 ? text.slice(begin) : text;
}

/** A line in which nothing is written twice. */
function written(text, style) {
  const runs = [];
  let columns = 0;
  const write = (part) => {
    const shown = printable(part, columns);
    if (!shown) return;
    columns += columnsOf(shown);
    if (runs.length && runs.at(-1).style === style) runs.at(-1).text += shown;
    else runs.push({ text: shown, style });
  };
  each(text, write, (parameters, final) => {
    if (final === "m") style = styled(style, parameters);
  });
  return { runs, style, columns };
}

/** A line as cells, each of which can be written again. */
function painted(text, style) {
  const cells = [];
  let at = 0;
  const write = (part) => {
    for (const char of part) {
      if (char === "\r") at = 0;
      else if (char === "\b") at = Math.max(0, at - 1);
      else if (char === "\t") at += TAB - (at % TAB);
      else if (!SPECIAL.test(char)) put(char);
    }
  };
  const put = (char) => {
    while (cells.length < at) cells.push({ char: " ", style: PLAIN });
    cells[at++] = { char, style };
  };
  each(text, write, (parameters, final) => {
    if (final === "m") style = styled(style, parameters);
    else at = moved(cells, at, final, Math.min(Number.parseInt(parameters || "0", 10) || 0, 10_000));
  });
  return { ...joined(cells), style };
}

/** Do a move or an erasure within the line; where writing goes on. */
function moved(cells, at, final, number) {
  if (final === "C") return at + Math.max(1, number);
  if (final === "D") return Math.max(0, at - Math.max(1, number));
  if (final === "G") return Math.max(0, number - 1);
  if (final === "K" && number === 0) cells.length = Math.min(cells.length, at);
  if (final === "K" && number === 1) for (let i = 0; i <= at && i < cells.length; i++) cells[i] = { char: " ", style: PLAIN };
  if (final === "K" && number === 2) cells.length = 0;
  return at;
}

function joined(cells) {
  const runs = [];
  let columns = 0;
  for (const { char, style } of cells) {
    columns += width(char.codePointAt(0));
    if (runs.length && runs.at(-1).style === style) runs.at(-1).text += char;
    else runs.push({ text: char, style });
  }
  return { runs, columns };
}

/** Go through a text: what is written, and what the escape sequences between say. */
function each(text, write, told) {
  let from = 0;
  for (const found of text.matchAll(ESCAPE)) {
    if (found.index > from) write(text.slice(from, found.index));
    if (found[2]) told(found[1], found[2]);
    from = found.index + found[0].length;
  }
  if (from < text.length) write(text.slice(from));
}

function printable(text, columns) {
  if (!SPECIAL.test(text)) return text;
  let shown = "";
  for (const char of text) {
    if (char === "\t") shown += " ".repeat(TAB - ((columns + columnsOf(shown)) % TAB));
    else if (!SPECIAL.test(char)) shown += char;
  }
  return shown;
}

// -- styles -------------------------------------------------------------------------------------

const ON = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike", 21: "underline" };
const OFF = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["strike"], 39: ["fg"], 49: ["bg"] };

/** The style after `ESC [ parameters m`. A colour is the number of one of 256, or `[red, green, blue]`. */
export function styled(style, parameters) {
  let next = { ...style };
  const groups = parameters.split(";");
  for (let i = 0; i < groups.length; i++) {
    const [code, ...parts] = groups[i].split(":").map((part) => Number.parseInt(part || "0", 10));
    if (code === 38 || code === 48) {
      const [colour, taken] = parts.length ? [colon(parts), 0] : extended(groups.slice(i + 1).map(Number));
      if (colour !== null) next[code === 38 ? "fg" : "bg"] = colour;
      i += taken;
    } else if (code === 0) next = {};
    else if (code === 4 && parts[0] === 0) delete next.underline;
    else if (ON[code]) next[ON[code]] = true;
    else if (OFF[code]) for (const name of OFF[code]) delete next[name];
    else if (code >= 30 && code <= 37) next.fg = code - 30;
    else if (code >= 40 && code <= 47) next.bg = code - 40;
    else if (code >= 90 && code <= 97) next.fg = code - 90 + 8;
    else if (code >= 100 && code <= 107) next.bg = code - 100 + 8;
  }
  return Object.keys(next).length ? next : PLAIN;
}

/** The colour after `38;` or `48;`, and how many codes it takes. */
function extended(codes) {
  if (codes[0] === 5) return [known(codes[1]), 2];
  return codes[0] === 2 ? [whole(codes.slice(1, 4)), 4] : [null, codes.length];
}

/** The same after `38:`, where a colour space, which nobody uses, may stand before red, green and blue. */
function colon(codes) {
  if (codes[0] === 5) return known(codes[1]);
  return codes[0] === 2 ? whole(codes.slice(codes.length >= 5 ? 2 : 1).slice(0, 3)) : null;
}

function known(number) {
  return number >= 0 && number <= 255 ? number : null;
}

function whole(rgb) {
  return rgb.length === 3 && rgb.every((part) => part >= 0 && part <= 255) ? rgb : null;
}

const LIGHT = {
  paper: [255, 255, 255], ink: [23, 32, 46],
  colours: [[0, 0, 0], [179, 32, 26], [20, 113, 63], [143, 83, 0], [36, 87, 197], [143, 40, 150], [0, 110, 125], [86, 98, 117],
    [70, 78, 92], [206, 34, 26], [16, 125, 62], [153, 92, 0], [45, 100, 220], [165, 50, 175], [0, 118, 135], [100, 110, 125]],
};
const DARK = {
  paper: [18, 23, 30], ink: [230, 234, 241],
  colours: [[120, 130, 145], [255, 142, 134], [95, 211, 152], [240, 180, 86], [134, 174, 252], [225, 150, 240], [90, 205, 220],
    [205, 212, 222], [140, 150, 165], [255, 165, 158], [130, 228, 178], [250, 205, 120], [165, 195, 255], [238, 180, 250],
    [130, 225, 238], [255, 255, 255]],
};
const CONTRAST = 4.5;

/** The colours of a style, as `{color, background}` for CSS (null: as everything else), readable on this theme's paper. */
export function colours(style, dark) {
  const theme = dark ? DARK : LIGHT;
  let fg = style.fg === undefined ? null : rgbOf(style.fg, theme);
  let bg = style.bg === undefined ? null : rgbOf(style.bg, theme);
  if (style.inverse) [fg, bg] = [bg ?? theme.paper, fg ?? theme.ink];
  const paper = bg ?? theme.paper;
  if (style.dim) fg = mixed(fg ?? theme.ink, paper, 0.3);
  if (fg || bg) fg = readable(fg ?? theme.ink, paper);
  return { color: fg && css(fg), background: bg && css(bg) };
}

function rgbOf(colour, theme) {
  if (Array.isArray(colour)) return colour;
  if (colour < 16) return theme.colours[colour];
  if (colour >= 232) return Array(3).fill(8 + 10 * (colour - 232));
  const steps = [0, 95, 135, 175, 215, 255];
  const number = colour - 16;
  return [steps[Math.floor(number / 36)], steps[Math.floor(number / 6) % 6], steps[number % 6]];
}

/** A colour as near to one as can be read on a paper. */
export function readable(colour, paper) {
  const aim = luminance(paper) > 0.18 ? [0, 0, 0] : [255, 255, 255];
  let found = colour;
  for (let part = 0.1; contrast(found, paper) < CONTRAST && part <= 1.01; part += 0.1) found = mixed(colour, aim, part);
  return found;
}

/** How well two colours can be told apart, as WCAG has it: 1 to 21. */
export function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

function luminance([red, green, blue]) {
  const part = (value) => (value <= 10 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * part(red) + 0.7152 * part(green) + 0.0722 * part(blue);
}

function mixed(one, other, share) {
  return one.map((value, i) => Math.round(value + (other[i] - value) * share));
}

function css(rgb) {
  return `rgb(${rgb.join(",")})`;
}
