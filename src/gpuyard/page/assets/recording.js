// What was recorded of GPUs: asked for, and put as it is drawn, told in numbers, and saved. Nothing here draws.
import { clock, duration, size } from "/page/assets/words.js";

const whole = (unit) => (value) => `${Math.round(value)} ${unit}`;
const tenths = (unit) => (value) => `${value && value < 10 ? value.toFixed(1) : Math.round(value)} ${unit}`;

export const METRICS = {
  utilization: { name: "Utilization", column: "utilization_percent", text: whole("%"), most: 100 },
  memory_used: { name: "Memory", column: "memory_used_bytes", text: size, binary: true },
  power: { name: "Power", column: "power_watts", text: tenths("W") },
  temperature: { name: "Temperature", column: "temperature_celsius", text: whole("°C") },
  memcopy: { name: "Memory copy", column: "memory_copy_percent", text: whole("%"), most: 100 },
  sm_clock: { name: "SM clock", column: "sm_clock_mhz", text: whole("MHz") },
  memory_clock: { name: "Memory clock", column: "memory_clock_mhz", text: whole("MHz") },
  process_memory: { name: "Memory of the job", column: "job_memory_bytes", text: size, binary: true },
  process_utilization: { name: "Utilization by the job", column: "job_utilization_percent", text: whole("%"), most: 100 },
};
export const OF_GPUS = ["utilization", "memory_used", "power", "temperature", "memcopy", "sm_clock", "memory_clock"];
export const TROUBLES = ["throttle"]; // asked for with all others; errors are told without

// Why a GPU runs slower than it could, by NVML's bits. That it has nothing to do is no trouble, and that it draws all the
// power that it may is usual under load: that is told, but not made much of.
const SLOWED = [[0x8, "the hardware"], [0x20, "heat"], [0x40, "heat"], [0x80, "the power supply"], [0x4, "its power limit"]];
const MILD = "its power limit";
const ERRORS = {
  13: "a program's fault in the graphics engine", 31: "a program's memory fault", 43: "a program was stopped", 45: "programs were cleared away",
  48: "memory error that cannot be corrected", 61: "internal fault", 62: "internal fault", 63: "a memory row was replaced", 64: "a memory row could not be replaced",
  74: "NVLink error", 79: "the GPU fell off the bus", 94: "memory error, contained", 95: "memory error, not contained", 119: "its firmware does not answer", 120: "its firmware failed",
};
const FEW = 3; // times the usual distance of two values, beyond which there is a gap
const SHORT = 30; // seconds that are no gap: idle GPUs are looked at less often

/** What the API answers; an error has its sentence. */
export async function ask(path, query, signal) {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== ""));
  let answer;
  try {
    answer = await fetch(`/api/v1${path}?${asked}`, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the daemon does not answer at the moment");
  }
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(told.detail || `the daemon answered with status ${answer.status}`);
  told.gpus = joined(told.gpus);
  return told;
}

/** GPUs by their numbers: where another took the place of one, it goes on where that ended. */
function joined(gpus) {
  const found = new Map();
  for (const gpu of [...gpus].sort((one, other) => one.index - other.index || one.at[0] - other.at[0])) {
    const before = found.get(gpu.index);
    found.set(gpu.index, before ? { ...gpu, at: [...before.at, ...gpu.at], metrics: oneBehindTheOther(before, gpu) } : gpu);
  }
  return [...found.values()];
}

function oneBehindTheOther(first, second) {
  const values = (gpu, name, kind) => gpu.metrics[name]?.[kind] ?? gpu.metrics[name]?.mean ?? gpu.at.map(() => null);
  const names = new Set([...Object.keys(first.metrics), ...Object.keys(second.metrics)]);
  return Object.fromEntries([...names].map((name) => {
    const spans = first.metrics[name]?.min || second.metrics[name]?.min;
    return [name, Object.fromEntries(["mean", "min", "max"].map((kind) => [kind, kind === "mean" || spans ? [...values(first, name, kind), ...values(second, name, kind)] : null]))];
  }));
}

/** One metric of something as a curve: `{at, mean, low, high, period}`, with nulls where nothing is known; null if nothing is. */
export function curve(one, metric, period) {
  const told = one?.metrics?.[metric];
  if (!told || !one.at.length) return null;
  const found = { at: [], mean: [], low: told.min && told.max ? [] : null, high: told.min && told.max ? [] : null, period };
  const middle = found.low ? period / 2 : 0; // a value that stands for a span stands in its middle
  const far = Math.max(SHORT, FEW * period);
  one.at.forEach((at, i) => {
    if (i && at - one.at[i - 1] > far) push(found, one.at[i - 1] + middle + period, null, null, null);
    push(found, at + middle, told.mean[i], told.min?.[i], told.max?.[i]);
  });
  return found;
}

function push(found, at, mean, low, high) {
  found.at.push(at);
  found.mean.push(mean ?? null);
  found.low?.push(low ?? null);
  found.high?.push(high ?? null);
}

/** A curve with the samples after its end that came since: what is seen live goes on where the recording ends. */
export function goneOn(known, at, values) {
  const last = known?.at.at(-1) ?? -Infinity;
  const first = at.findIndex((time) => time > last);
  if (first < 0 || !values) return known;
  const found = known ? { ...known, at: [...known.at], mean: [...known.mean], low: known.low && [...known.low], high: known.high && [...known.high] } : { at: [], mean: [], low: null, high: null };
  for (let i = first; i < at.length; i += 1) {
    if (found.at.length && at[i] - found.at.at(-1) > SHORT) push(found, found.at.at(-1) + 1, null, null, null);
    push(found, at[i], values[i], values[i], values[i]);
  }
  return found;
}

/** The least, the mean and the most of a curve within a span; null if nothing is known. */
export function numbers(known, from = -Infinity, to = Infinity) {
  let least = Infinity, most = -Infinity, sum = 0, many = 0;
  known?.mean.forEach((value, i) => {
    if (value === null || known.at[i] < from || known.at[i] > to) return;
    least = Math.min(least, known.low?.[i] ?? value);
    most = Math.max(most, known.high?.[i] ?? value);
    sum += value;
    many += 1;
  });
  return many ? { least, most, mean: sum / many } : null;
}

/** A round number that is not below another, of which a quarter or a half is round too. */
export function ceiling(value, binary) {
  if (!(value > 0)) return binary ? 2 ** 30 : 1;
  const base = binary ? 2 ** Math.floor(Math.log2(value)) : 10 ** Math.floor(Math.log10(value));
  return base * (binary ? [1, 1.5, 2] : [1, 2, 4, 6, 8, 10]).find((factor) => factor * base >= value * 0.999);
}

/** Into how many parts such a number is divided, so that each is round. */
export function parts(top, binary) {
  const factor = top / (binary ? 2 ** Math.floor(Math.log2(top)) : 10 ** Math.floor(Math.log10(top)));
  return Math.abs(factor - (binary ? 1.5 : 6)) < 0.01 ? 3 : 4;
}

/** The spans in which GPUs were slowed down, and their errors: `{gpu, at, until, text, grave}`. */
export function troubles(told) {
  return [...told.gpus.flatMap((gpu) => slowed(gpu, told.period)), ...errors(told)].sort((one, other) => one.at - other.at);
}

/** When jobs began and ended on a GPU: `{at, text}`. */
export function spells(told, gpu, but = null) {
  const there = told.marks.filter((mark) => mark.job !== null && mark.job !== but && mark.gpu === gpu);
  return there.flatMap(({ at, until, label }) => [{ at, text: `${label} begins` }, ...(until === null ? [] : [{ at: until, text: `${label} ends` }])]);
}

function slowed(gpu, period) {
  const bits = gpu.metrics.throttle?.max ?? gpu.metrics.throttle?.mean ?? [];
  const found = [];
  let open = null;
  gpu.at.forEach((at, i) => {
    const why = [...new Set(SLOWED.filter(([bit]) => Math.round(bits[i] ?? 0) & bit).map(([, words]) => words))].join(" and ");
    if (open && open.why === why && why) open.until = at + period;
    else open = why ? { gpu: gpu.index, at, until: at + period, why, grave: false } : null;
    if (open && found.at(-1) !== open) found.push(open);
  });
  return found.map((one) => ({ ...one, mild: one.why === MILD, text: `slowed down by ${one.why}` }));
}

function errors(told) {
  return told.marks.filter((mark) => mark.job === null).map(({ gpu, at, label }) => {
    const known = ERRORS[label.match(/^XID (\d+)$/)?.[1]];
    return { gpu, at, until: null, grave: true, text: known ? `${label}, ${known}` : label };
  });
}

/** Troubles as sentences, a line for each kind, the latest first. */
export function said(found, most = 6) {
  const now = Date.now() / 1000, kinds = new Map();
  for (const one of found.filter(({ mild }) => !mild)) {
    const key = `GPU ${one.gpu}: ${one.text}`, before = kinds.get(key) ?? { times: 0, long: 0 };
    kinds.set(key, { times: before.times + 1, long: before.long + (one.until === null ? 0 : one.until - one.at), last: one.at });
  }
  const lines = [...kinds].sort(([, one], [, other]) => other.last - one.last).map(([key, { times, long, last }]) => {
    const how = long ? ` for ${duration(Math.max(1, long))}${times > 1 ? " in all" : ""}` : times > 1 ? `, ${times} times` : "";
    return `${key}${how}, ${times > 1 ? "last " : ""}${clock(last, now)}.`;
  });
  return lines.length > most ? [...lines.slice(0, most), `And ${lines.length - most} more.`] : lines;
}

/** Something recorded as a file for spreadsheets: a row for each GPU, or job on it, and instant. */
export function csv(told, metrics) {
  const spans = [...told.gpus, ...told.jobs].some((one) => Object.values(one.metrics).some((values) => values.min));
  const kinds = spans ? ["mean", "min", "max"] : ["mean"];
  const head = ["time", "gpu", "uuid", "job", ...metrics.flatMap((metric) => kinds.map((kind) => METRICS[metric].column + (spans ? `_${kind}` : "")))];
  const lines = [head.join(",")];
  for (const one of [...told.gpus, ...told.jobs]) {
    const values = metrics.flatMap((metric) => kinds.map((kind) => one.metrics[metric]?.[kind] ?? one.metrics[metric]?.mean));
    if (!values.some(Boolean)) continue;
    const whom = [one.index ?? one.gpu, cell(one.uuid ?? ""), cell(one.id ?? "")];
    one.at.forEach((at, i) => {
      lines.push([new Date(1000 * at).toISOString(), ...whom, ...values.map((column) => column?.[i] ?? "")].join(","));
    });
  }
  return lines.join("\r\n") + "\r\n";
}

// A cell that no spreadsheet takes for a formula, or for two.
const cell = (text) => `${/^[=+\-@\t]/.test(text) ? "'" : ""}${text}`.replace(/[",\r\n]/g, " ");

export function save(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
