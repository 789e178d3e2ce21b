// Charts of recordings: panels that share a time axis. Point at one for its values, drag to zoom, click a name to hide it.
"use strict";
(() => {
  const box = document.querySelector(".charts");
  const data = JSON.parse(document.getElementById("recorded").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const LANE = 17, LEFT = 58, RIGHT = 12, BOTTOM = 26, ROW = 22;
  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800,
    604800, 1209600, 2419200, 7862400, 31449600];
  const view = { left: data.left, right: data.right };
  const hidden = new Set();
  let cursor = null;

  const colour = (name) => `var(--${name})`;
  const make = (name, attributes, parent, text) => {
    const found = document.createElementNS(SVG, name);
    for (const key in attributes) found.setAttribute(key, attributes[key]);
    if (text !== undefined) found.textContent = text;
    if (parent) parent.appendChild(found);
    return found;
  };
  const html = (name, text, parent, kind) => {
    const found = document.createElement(name);
    if (text) found.textContent = text;
    if (kind) found.className = kind;
    if (parent) parent.appendChild(found);
    return found;
  };
  const paint = (element, name) => { element.style.setProperty("--mine", colour(name)); return element; };

  // Where a time stands among sorted ones: the last that is not after it.
  const before = (at, time) => {
    let low = 0, high = at.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (at[middle] <= time) low = middle + 1; else high = middle;
    }
    return low - 1;
  };
  const nearest = (at, time) => {
    const place = Math.max(before(at, time), 0);
    return place + 1 < at.length && at[place + 1] - time < time - at[place] ? place + 1 : place;
  };

  const number = (value, unit) => {
    const digits = Math.abs(value) >= 1000 ? 0 : Math.abs(value) >= 100 ? 1 : 2;
    const text = value.toLocaleString("en-US", { maximumFractionDigits: digits });
    return unit ? `${text} ${unit}` : text;
  };
  const two = (value) => String(value).padStart(2, "0");
  const zone = () => {
    const parts = new Intl.DateTimeFormat("en-US", { timeZoneName: "short" }).formatToParts(new Date(data.origin * 1000));
    return parts.find((part) => part.type === "timeZoneName").value;
  };
  const day = (date) => `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const clock = (date) => `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  const lasting = (seconds) => {
    const whole = Math.abs(seconds), sign = seconds < 0 ? "-" : "";
    if (whole < 60) return `${sign}${Number(whole.toFixed(whole < 10 ? 2 : 1))} s`;
    const hours = Math.floor(whole / 3600), minutes = Math.floor((whole % 3600) / 60), rest = Math.floor(whole % 60);
    return sign + (hours ? `${hours} h ${two(minutes)} min` : `${minutes} min ${two(rest)} s`);
  };
  const told = (time) => {
    if (!data.clock) return `${lasting(time)} since the start`;
    const date = new Date((data.origin + time) * 1000);
    return `${day(date)} ${clock(date)}`;
  };

  const ticks = (width) => {
    const span = view.right - view.left;
    const most = Math.max(2, Math.floor(width / 84));
    let step = STEPS.find((one) => span / one <= most) || STEPS[STEPS.length - 1];
    if (span < most) step = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1].find((one) => span / one <= most) || 1;
    let first = 0;
    if (data.clock) {
      const start = new Date((data.origin + view.left) * 1000);
      first = new Date(start.getFullYear(), start.getMonth(), start.getDate()).getTime() / 1000 - data.origin;
    }
    const found = [];
    for (let k = Math.ceil((view.left - first) / step); first + k * step <= view.right + 1e-9; k++) {
      found.push([first + k * step, tickText(first + k * step, step)]);
    }
    return found;
  };
  const tickText = (time, step) => {
    if (!data.clock) {
      const [size, unit] = step < 60 ? [1, "s"] : step < 3600 ? [60, "min"] : step < 86400 ? [3600, "h"] : [86400, "d"];
      return `${Number((time / size).toFixed(3))} ${unit}`;
    }
    const date = new Date((data.origin + time) * 1000);
    if (step < 1) return `${clock(date)}.${String(date.getMilliseconds()).padStart(3, "0")}`;
    const text = clock(date);
    const midnight = text === "00:00:00";
    if (step >= 86400 || (midnight && step >= 60)) return day(date).slice(5);
    return step < 60 ? text : text.slice(0, 5);
  };
  const round = (most) => {
    const rough = most / 5, power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999);
  };

  const visible = (panel) => panel.lines.filter((line) => !hidden.has(line.group));

  // From which value to which the y axis goes.
  const range = (panel) => {
    if (panel.most) return [0, panel.most * 1.02];
    let low = Infinity, high = -Infinity;
    for (const line of visible(panel).filter((one) => one.least !== null)) {
      low = Math.min(low, line.least);
      high = Math.max(high, line.greatest);
    }
    if (!(high >= low)) return [0, 1];
    if (!panel.afloat) return [0, high * 1.05 || 1];
    return [low - 0.05 * (high - low) - 1, high + 0.05 * (high - low) + 1];
  };

  // Each note in the first row with room for it and its name; else without its name in the last.
  const placed = (notes, width) => {
    const ends = [];
    return notes.map((note) => {
      const x = scaleX(note.at, width), end = note.until === null ? x : scaleX(note.until, width);
      if (end < LEFT - 2 || x > width - RIGHT + 2) return null;
      const long = note.label.length * 6 + 10, from = Math.max(x, LEFT);
      const turned = from + long > width - RIGHT;
      const begin = turned ? x - long : from, until = Math.max(turned ? x : from + long, end);
      let lane = ends.findIndex((one) => one <= begin);
      if (lane < 0 && ends.length < 6) lane = ends.push(-Infinity) - 1;
      const named = lane >= 0 && begin >= 0;
      if (lane < 0) lane = ends.length - 1; else ends[lane] = until;
      return { note, x, end, lane, named, turned, from };
    }).filter(Boolean);
  };
  const scaleX = (time, width) => LEFT + ((time - view.left) / (view.right - view.left)) * (width - LEFT - RIGHT);

  const draw = (panel) => {
    const svg = panel.svg, width = Math.max(svg.parentNode.clientWidth, 260);
    const notes = placed(data.strips[panel.strip], width);
    const named = panel.place === 0 || data.panels[panel.place - 1].strip !== panel.strip;
    const top = 8 + LANE * (named && notes.length ? Math.max(...notes.map((one) => one.lane)) + 1 : 0);
    const middle = panel.rows ? Math.max(panel.rows.length, 1) * ROW : width < 600 ? 150 : data.panels.length > 6 ? 150 : 190;
    const height = top + middle + BOTTOM;
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    Object.assign(panel, { width, top, middle, height });
    panel.clip.firstChild.setAttribute("x", LEFT);
    for (const [key, value] of [["y", top - 1], ["width", width - LEFT - RIGHT], ["height", middle + 2]]) {
      panel.clip.firstChild.setAttribute(key, value);
    }
    svg.appendChild(panel.clip);
    drawTimes(panel);
    if (!panel.rows) drawValues(panel);
    const inner = make("g", { "clip-path": `url(#${panel.clip.id})` }, svg);
    drawNotes(panel, notes, inner, named);
    if (panel.rows) drawRows(panel, inner); else visible(panel).forEach((line) => drawLine(panel, line, inner));
    panel.over = make("g", {}, svg);
    drawCursor(panel);
  };
  const drawTimes = ({ svg, width, top, middle }) => {
    for (const [time, text] of ticks(width - LEFT - RIGHT)) {
      const x = scaleX(time, width);
      make("line", { class: "grid", x1: x, x2: x, y1: top, y2: top + middle }, svg);
      const side = x > width - 36 ? "end" : "middle";
      make("text", { x: side === "end" ? width - 2 : x, y: top + middle + 15, "text-anchor": side }, svg, text);
    }
    make("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: top + middle, y2: top + middle }, svg);
  };
  const drawValues = (panel) => {
    const { svg, width, top, middle } = panel;
    [panel.low, panel.high] = range(panel);
    panel.y = (value) => top + middle - ((value - panel.low) / (panel.high - panel.low)) * middle;
    const step = panel.most ? panel.most / (middle < 160 ? 4 : 5) : round(panel.high - panel.low);
    for (let k = Math.ceil(panel.low / step); k * step <= panel.high + 1e-9; k++) {
      const y = panel.y(k * step);
      make("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }, svg);
      make("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, svg, Number((k * step).toFixed(6)).toLocaleString("en-US"));
    }
  };
  // Names stand above the first of several panels with the same notes; lines go through all of them.
  const drawNotes = ({ svg, width, top, middle }, notes, inner, named) => {
    for (const one of notes) {
      if (named) drawName(svg, width, one);
      for (const at of one.note.until === null ? [one.x] : [one.x, one.end]) {
        paint(make("line", { class: "noted", x1: at, x2: at, y1: top, y2: top + middle }, inner), one.note.colour);
      }
    }
  };
  const drawName = (svg, width, { note, x, end, lane, named, turned, from }) => {
    const y = 2 + lane * LANE;
    if (note.until !== null) {
      const right = Math.min(end, width - RIGHT);
      paint(make("rect", { class: "span", x: from, y, width: Math.max(right - from, 1), height: LANE - 3 }, svg), note.colour);
    }
    if (x >= LEFT - 2) paint(make("rect", { class: "solid", x: x - 1, y, width: 2, height: LANE - 3 }, svg), note.colour);
    const text = { class: "note", x: turned ? x - 4 : from + 4, y: y + 11, "text-anchor": turned ? "end" : "start" };
    if (named) make("text", text, svg, note.label);
  };
  const drawLine = (panel, line, inner) => {
    const at = data.times[line.at], { width, y } = panel;
    const first = Math.max(before(at, view.left), 0), last = Math.min(before(at, view.right) + 2, at.length);
    const round1 = (value) => Math.round(value * 10) / 10;
    let path = "", open = false;
    const singles = [], runs = [];
    let run = [];
    for (let k = first; k < last; k++) {
      if (line.mean[k] === null) { open = false; if (run.length) runs.push(run); run = []; continue; }
      path += `${open ? "L" : "M"}${round1(scaleX(at[k], width))} ${round1(y(line.mean[k]))}`;
      open = true;
      run.push(k);
    }
    if (run.length) runs.push(run);
    for (const one of runs) {
      if (one.length === 1) { singles.push(one[0]); continue; }
      if (!line.low) continue;
      const upper = one.map((k) => `${round1(scaleX(at[k], width))} ${round1(y(line.high[k]))}`);
      const lower = one.map((k) => `${round1(scaleX(at[k], width))} ${round1(y(line.low[k]))}`).reverse();
      paint(make("path", { class: "band", d: `M${upper.join("L")}L${lower.join("L")}Z` }, inner), line.colour);
    }
    const dashes = line.beneath ? { "stroke-dasharray": `9 ${9 * line.beneath}` } : {};
    if (path) paint(make("path", { class: line.faint ? "faint" : "line", d: path, ...dashes }, inner), line.colour);
    for (const k of singles) paint(make("circle", { cx: scaleX(at[k], width), cy: y(line.mean[k]), r: 2.5 }, inner), line.colour);
  };
  const drawRows = (panel, inner) => {
    const { svg, width, top } = panel;
    if (!panel.rows.length) make("text", { class: "row", x: LEFT + 8, y: top + 15 }, svg, panel.none);
    panel.rows.forEach((row, place) => {
      const y = top + place * ROW;
      for (const [start, end] of row.bars) {
        const x = scaleX(start, width);
        paint(make("rect", { class: "solid", x, y: y + 4, width: Math.max(scaleX(end, width) - x, 1), height: ROW - 8 }, inner), row.colour);
      }
      for (const [time, text] of row.points) {
        const x = scaleX(time, width);
        paint(make("circle", { cx: x, cy: y + ROW / 2, r: 4 }, inner), "red");
        const late = x > width * 0.7;
        make("text", { class: "row", x: x + (late ? -8 : 8), y: y + 15, "text-anchor": late ? "end" : "start" }, inner, text);
      }
      const name = make("text", { class: "row", x: LEFT + 4, y: y + 15 }, svg, row.name);
      Object.assign(name.style, { paintOrder: "stroke", stroke: "var(--page)", strokeWidth: "4px", strokeLinejoin: "round" });
    });
  };

  const tip = html("div", "", box, "tip");
  const spoken = html("div", "", box, "hidden");
  tip.hidden = true;
  spoken.setAttribute("aria-live", "polite");

  const drawCursor = (panel) => {
    panel.over.replaceChildren();
    if (panel.from !== undefined && panel.to !== undefined) {
      const x = Math.min(panel.from, panel.to);
      make("rect", { class: "chosen", x, y: panel.top, width: Math.abs(panel.to - panel.from), height: panel.middle }, panel.over);
    }
    if (cursor === null || cursor < view.left || cursor > view.right) return;
    const x = scaleX(cursor, panel.width);
    make("line", { class: "cursor", x1: x, x2: x, y1: panel.top, y2: panel.top + panel.middle }, panel.over);
    if (panel.rows) return;
    for (const { line, k } of values(panel)) {
      if (line.faint) continue;
      const at = scaleX(data.times[line.at][k], panel.width);
      if (at < LEFT || at > panel.width - RIGHT) continue;
      paint(make("circle", { class: "spot", cx: at, cy: panel.y(line.mean[k]), r: 3.5 }, panel.over), line.colour);
    }
  };
  // The lines that have a value at the cursor, and where it is.
  const values = (panel) => visible(panel).flatMap((line) => {
    const at = data.times[line.at];
    if (!at.length) return [];
    const k = nearest(at, cursor);
    const reach = Math.max(2 * line.period, (view.right - view.left) / 200);
    return line.mean[k] === null || Math.abs(at[k] - cursor) > reach ? [] : [{ line, k }];
  });
  const rowsAt = (panel) => panel.rows.flatMap((row) => {
    const near = (view.right - view.left) / 100;
    const holds = row.bars.some(([start, end]) => start <= cursor && cursor <= end);
    return [...(holds ? [[row.name, "yes"]] : []), ...row.points.filter(([at]) => Math.abs(at - cursor) < near).map(([, text]) => [row.name, text])];
  });
  const notesAt = (panel) => {
    const near = (view.right - view.left) / 150;
    return data.strips[panel.strip].filter((note) => note.until === null
      ? Math.abs(note.at - cursor) < near : note.at - near < cursor && cursor < note.until + near);
  };
  const shown = (panel, height) => {
    const found = values(panel), strong = found.filter(({ line }) => !line.faint);
    const away = ({ line, k }) => Math.abs(panel.y(line.mean[k]) - height);
    const faint = found.filter(({ line }) => line.faint).sort((a, b) => away(a) - away(b));
    const many = strong.length > 12 ? strong.sort((a, b) => away(a) - away(b)).slice(0, 12) : strong;
    return [...many, ...faint.slice(0, height === undefined ? 0 : 1)];
  };
  const point = (panel, x, y, height) => {
    tip.replaceChildren();
    html("b", told(cursor), tip);
    const add = (name, value, mine) => {
      const row = html("div", "", tip), left = html("span", "", row);
      if (mine) paint(html("i", "", left), mine);
      left.append(name);
      html("em", value, row);
    };
    if (panel.rows) for (const [name, value] of rowsAt(panel)) add(name, value === "yes" ? "" : value);
    else {
      const found = shown(panel, height);
      for (const { line, k } of found) {
        const spread = line.low && line.low[k] !== null && line.high[k] > line.low[k]
          ? ` (${number(line.low[k])} to ${number(line.high[k])})` : "";
        add(line.name, number(line.mean[k], panel.unit) + spread, line.colour);
      }
      if (!found.length) add("no value is known", "");
    }
    for (const note of notesAt(panel).slice(0, 6)) add(note.label, "", note.colour);
    tip.hidden = false;
    const wide = tip.offsetWidth, tall = tip.offsetHeight;
    tip.style.left = `${x + 16 + wide > innerWidth ? Math.max(4, x - wide - 16) : x + 16}px`;
    tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - tall - 4))}px`;
  };
  const leave = () => { cursor = null; tip.hidden = true; data.panels.forEach(drawCursor); };

  const timeAt = (panel, event) => {
    const area = panel.svg.getBoundingClientRect();
    const x = ((event.clientX - area.left) / area.width) * panel.width;
    const share = Math.min(Math.max((x - LEFT) / (panel.width - LEFT - RIGHT), 0), 1);
    return { x: LEFT + share * (panel.width - LEFT - RIGHT), time: view.left + share * (view.right - view.left),
      height: ((event.clientY - area.top) / area.height) * panel.height };
  };
  const show = (left, right) => {
    const whole = data.right - data.left, least = Math.max(whole / 1e5, 0.01);
    let span = Math.min(Math.max(right - left, least), whole);
    view.left = Math.min(Math.max(left, data.left), data.right - span);
    view.right = view.left + span;
    reset.disabled = span >= whole * 0.999999;
    data.panels.forEach(draw);
  };
  const zoom = (factor) => {
    const at = cursor === null ? (view.left + view.right) / 2 : cursor;
    show(at - (at - view.left) * factor, at + (view.right - at) * factor);
  };

  const follow = (panel) => {
    const svg = panel.svg;
    const drop = () => { panel.from = panel.to = undefined; };
    svg.addEventListener("pointermove", (event) => {
      const { x, time, height } = timeAt(panel, event);
      cursor = time;
      if (panel.from !== undefined) panel.to = x;
      data.panels.forEach(drawCursor);
      point(panel, event.clientX, event.clientY, height);
    });
    svg.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      svg.setPointerCapture(event.pointerId);
      panel.from = timeAt(panel, event).x;
    });
    svg.addEventListener("pointerup", (event) => {
      const { x } = timeAt(panel, event), from = panel.from;
      drop();
      if (from === undefined || Math.abs(x - from) < 6) { drawCursor(panel); return; }
      const back = (one) => view.left + ((one - LEFT) / (panel.width - LEFT - RIGHT)) * (view.right - view.left);
      show(back(Math.min(x, from)), back(Math.max(x, from)));
    });
    svg.addEventListener("pointercancel", () => { drop(); leave(); });
    svg.addEventListener("pointerleave", () => { if (panel.from === undefined) leave(); });
    svg.addEventListener("dblclick", () => show(data.left, data.right));
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => keys(panel, event));
  };
  const keys = (panel, event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const span = view.right - view.left, step = span / (event.shiftKey ? 10 : 100);
    const at = cursor === null ? (view.left + view.right) / 2 : cursor;
    const moves = { ArrowLeft: at - step, ArrowRight: at + step, Home: view.left, End: view.right };
    if (event.key in moves) {
      cursor = Math.min(Math.max(moves[event.key], data.left), data.right);
      if (cursor < view.left) show(cursor, cursor + span);
      else if (cursor > view.right) show(cursor - span, cursor);
    } else if (event.key === "+" || event.key === "=") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else if (event.key === "Escape" || event.key === "0") show(data.left, data.right);
    else return;
    event.preventDefault();
    if (cursor === null) cursor = at;
    data.panels.forEach(drawCursor);
    const area = panel.svg.getBoundingClientRect();
    point(panel, area.left + scaleX(cursor, panel.width), area.top + panel.top);
    spoken.textContent = tip.innerText;
  };

  const bar = html("div", "", null, "bar");
  const reset = html("button", "Show all", null, "no-print");
  const legend = () => {
    const groups = new Map();
    for (const panel of data.panels) for (const line of panel.lines) if (!groups.has(line.group)) groups.set(line.group, line);
    const list = html("div", "", bar, "legend-list");
    list.setAttribute("role", "group");
    list.setAttribute("aria-label", "Lines: press one to hide it or to show it again");
    const sorted = [...groups].sort((a, b) => a[1].faint - b[1].faint);
    for (const [group, line] of sorted) {
      const button = html("button", "", list);
      paint(html("i", "", button), line.colour);
      button.append(group);
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        if (!hidden.delete(group)) hidden.add(group);
        button.setAttribute("aria-pressed", String(!hidden.has(group)));
        data.panels.forEach(draw);
      });
    }
  };
  const build = () => {
    box.prepend(bar);
    legend();
    const inward = html("button", "+", bar, "no-print"), outward = html("button", "−", bar, "no-print");
    inward.setAttribute("aria-label", "Zoom in");
    outward.setAttribute("aria-label", "Zoom out");
    inward.addEventListener("click", () => zoom(0.5));
    outward.addEventListener("click", () => zoom(2));
    bar.appendChild(reset);
    reset.addEventListener("click", () => show(data.left, data.right));
    data.panels.forEach((panel, place) => {
      const part = html("section", "", box);
      html("h3", panel.title, part);
      panel.place = place;
      panel.svg = make("svg", { tabindex: 0, role: "application", "aria-roledescription": "chart", "aria-label": panel.about }, part);
      panel.clip = make("clipPath", { id: `inside-${place}` });
      make("rect", {}, panel.clip);
      follow(panel);
    });
    const axis = data.clock ? `Times are those of this browser's zone, ${zone()}.` : "Times are counted from the start of each recording.";
    html("p", axis, box, "soft");
    new ResizeObserver(() => data.panels.forEach(draw)).observe(box);
    show(data.left, data.right);
  };
  build();
})();
