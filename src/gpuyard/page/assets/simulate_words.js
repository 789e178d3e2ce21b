// What the charts of the simulator have in common.

// A duration, short enough for an axis.
export function lasts(seconds) {
  for (const [size, letter] of [[86400, "d"], [3600, "h"], [60, "m"]]) {
    if (Math.abs(seconds) >= size) return `${+(seconds / size).toPrecision(3)}${letter}`;
  }
  return `${+seconds.toPrecision(3)}s`;
}

// A colour of the theme that is on.
export function colour(name) {
  return getComputedStyle(document.body).getPropertyValue(name).trim();
}

// How far apart the marks of an axis are, so that they stand at times that people know.
export function step(span) {
  const nice = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 2 * 86400, 7 * 86400, 14 * 86400];
  if (span <= 1) return undefined;
  return nice.find((size) => span / size <= 8) ?? Math.ceil(span / 8 / 2592000) * 2592000;
}
