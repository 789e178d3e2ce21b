// Rows of a log as they are shown: which line they are of, what is marked in them, how they look. Pure, but for copying.

import { colours, columnsOf, wrapped } from "/page/assets/ansi.js";
import { folded } from "/page/assets/logfile.js";

/** The line that a row is of. */
export function lineOf(tops, row) {
  let [low, high] = [0, tops.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (tops[middle + 1] <= row) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Runs in which every place that has a text is a run of its own. */
export function marked(runs, text, anyCase) {
  const whole = runs.map((run) => run.text).join("");
  const [hay, wanted] = [folded(whole, anyCase), folded(text, anyCase)];
  if (hay.length !== whole.length || !hay.includes(wanted)) return runs;
  const found = [];
  let at = 0;
  for (const run of runs) {
    for (let from = 0; from < run.text.length; ) {
      const place = hay.lastIndexOf(wanted, at + from);
      const inside = place >= 0 && place + wanted.length > at + from;
      const next = inside ? place + wanted.length : hay.indexOf(wanted, at + from);
      const to = Math.min(run.text.length, next < 0 ? Infinity : next - at);
      found.push({ text: run.text.slice(from, to), style: inside ? { ...run.style, mark: true } : run.style });
      from = to;
    }
    at += run.text.length;
  }
  return found;
}

/** Row and column of the first mark in these rows of runs; null if there is none. */
export function markIn(rows) {
  for (const [row, runs] of rows.entries()) {
    let column = 0;
    for (const { text, style } of runs) {
      if (style.mark) return { row, column };
      column += columnsOf(text);
    }
  }
  return null;
}

/** As much of a line as is shown where it is not wrapped: its beginning, or what is around its first mark. */
export function cutOut(runs, columns, most) {
  const column = markIn([runs])?.column ?? 0;
  const before = column > most / 2 ? column - most / 2 : 0;
  const rest = before ? wrapped(runs, before).slice(1).flat() : runs;
  const after = columns - before - most;
  const told = (text) => ({ text, style: { told: true } });
  return [
    ...(before ? [told(`${before.toLocaleString()} before … `)] : []),
    ...wrapped(rest, most)[0],
    ...(after > 0 ? [told(` … ${after.toLocaleString()} more; Wrap shows them`)] : []),
  ];
}

export function looks(style, dark) {
  const names = ["bold", "italic", "underline", "strike", "mark", "told"].filter((name) => style[name]).map((name) => `gy-log-${name}`);
  if (style.mark) return { names };
  const { color, background } = colours(style, dark);
  return { names, look: color || background ? { color: color ?? undefined, background: background ?? undefined } : undefined };
}

export async function copied(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea"); // without TLS there is no clipboard but this one
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}
