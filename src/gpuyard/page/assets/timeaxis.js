// Where a time axis has its marks, on this clock: at round minutes, hours or days, and no more than there is room for.
const DAY = 86400;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, DAY, 2 * DAY, 5 * DAY, 10 * DAY, 30 * DAY];
const ROOM = 70; // pixels for each

const pad = (number) => String(number).padStart(2, "0");
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const day = (at) => `${at.getDate()} ${MONTHS[at.getMonth()]}`;

/** Marks from one instant to another, in seconds since the epoch: `{at, text, strong}`. */
export function ticks(from, to, width) {
  const most = Math.max(2, width / ROOM);
  const step = STEPS.find((one) => (to - from) / one <= most) ?? Math.ceil((to - from) / most / DAY) * DAY;
  return step < DAY ? withinDays(from, to, step) : byDays(from, to, step / DAY);
}

function withinDays(from, to, step) {
  const ahead = -60 * new Date(1000 * from).getTimezoneOffset();
  const found = [];
  for (let at = Math.ceil((from + ahead) / step) * step - ahead; at <= to; at += step) {
    const here = new Date(1000 * at);
    const midnight = here.getHours() + here.getMinutes() + here.getSeconds() === 0;
    const time = `${pad(here.getHours())}:${pad(here.getMinutes())}${step < 60 ? `:${pad(here.getSeconds())}` : ""}`;
    found.push({ at, text: midnight ? day(here) : time, strong: midnight });
  }
  return found;
}

function byDays(from, to, days) {
  const here = new Date(1000 * from), found = [];
  here.setHours(0, 0, 0, 0);
  for (let n = 0; here.getTime() <= 1000 * to; n += 1) {
    if (here.getTime() >= 1000 * from && n % days === 0) found.push({ at: here.getTime() / 1000, text: day(here), strong: false });
    here.setDate(here.getDate() + 1);
  }
  return found;
}
