// Numbers as people read them; the same words as `gpuyard` has on the terminal.

const UNITS = [
  [2 ** 40, "TiB"],
  [2 ** 30, "GiB"],
  [2 ** 20, "MiB"],
  [2 ** 10, "KiB"],
];

export function size(bytes) {
  for (const [unit, name] of UNITS) {
    if (bytes >= unit) return `${Number((bytes / unit).toPrecision(3))} ${name}`;
  }
  return bytes ? `${Math.round(bytes)} B` : "0";
}

const pad = (number) => String(number).padStart(2, "0");

// `12s`, `1m 20s`, `3h 05m` or `2d 03h`.
export function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m ${pad(s % 60)}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h ${pad(Math.floor((s % 3600) / 60))}m`;
  return `${Math.floor(s / 86400)}d ${pad(Math.floor((s % 86400) / 3600))}h`;
}

// How long something should take yet, by what was expected of it.
export const expected = (seconds, by) =>
  seconds >= 1 ? `${by === "limit" ? "at most" : "about"} ${duration(seconds)} left` : "longer than expected";

// An instant on this clock: `14:03` if that is today, else with the day.
export function clock(seconds, now) {
  const at = new Date(seconds * 1000);
  const today = new Date(now * 1000);
  const time = `${pad(at.getHours())}:${pad(at.getMinutes())}`;
  if (at.toDateString() === today.toDateString()) return time;
  const year = at.getFullYear() === today.getFullYear() ? "" : ` ${at.getFullYear()}`;
  return `${at.getDate()} ${at.toLocaleString("en", { month: "short" })}${year}, ${time}`;
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export const jobPath = (id) => `/jobs/${encodeURIComponent(id)}`;
