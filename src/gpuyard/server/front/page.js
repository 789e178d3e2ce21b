// The page: a client of the API like any other. It asks again when the stream of events says that something happened.

const API = "/api/v1";
const AT_MOST = 500;        // jobs that are shown
const PAUSE = 700;          // milliseconds between two looks, however much happens
const SLOW = 5000;          // and without any event: GPUs have readings, jobs their progress

const $ = (id) => document.getElementById(id);
let me = { user: "", role: "" }, csrf = "", stream = null, due = null, looking = false, again = false;

class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

async function ask(method, path, body) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  if (method !== "GET" && csrf) headers["X-CSRF-Token"] = csrf;
  const answer = await fetch(API + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await answer.text();
  const found = text ? JSON.parse(text) : {};
  if (!answer.ok) throw new Refused(answer.status, found.detail || `the daemon answered ${answer.status}`);
  return found;
}

// -- who looks

async function begin() {
  try {
    const session = await ask("GET", "/session");
    me = session;
    csrf = session.csrf || "";
    $("who").textContent = `${session.user} (${session.role})`;
    $("leave").hidden = !session.csrf;
    $("door").hidden = true;
    $("yard").hidden = false;
    listen();
    look();
  } catch (error) {
    if (error instanceof Refused && error.status === 401) return wantToken();
    say("lost", error instanceof Refused ? error.message : "the daemon does not answer; trying again");
    setTimeout(begin, 2000);
  }
}

function wantToken() {
  if (stream) stream.close();
  clearTimeout(due);
  $("yard").hidden = true;
  $("who").textContent = $("day").textContent = "";
  $("leave").hidden = true;
  $("door").hidden = false;
  say("wait", "sign in");
  $("token").focus();
}

$("door").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await ask("POST", "/session", { token: $("token").value.trim() });
    $("token").value = $("refusal").textContent = "";
    begin();
  } catch (error) {
    $("refusal").textContent = error.message;
  }
});

$("leave").addEventListener("click", async () => {
  await ask("DELETE", "/session").catch(() => {});
  csrf = "";
  wantToken();
});

// -- what happens

function listen() {
  if (stream) stream.close();
  stream = new EventSource(`${API}/events`);
  stream.onopen = () => { say("ok", "live"); look(); };
  stream.onerror = () => {
    say("lost", "the daemon went away; this page goes on when it is back");
    if (stream.readyState === EventSource.CLOSED) setTimeout(begin, 2000);
  };
  for (const kind of KINDS) stream.addEventListener(kind, soon);
  stream.onmessage = soon;
}

const KINDS = [
  "Submitted", "Edited", "Placed", "Started", "Exited", "Cancelled", "Held", "Released", "Recalled", "Preempted",
  "Requeued", "Abandoned", "Opened", "PolicySet", "GpusWithdrawn", "GpusRestored", "GpusDrained", "GpusResumed",
  "Booked", "Unbooked", "RulesSet",
];

function soon() { plan(PAUSE); }

function plan(delay) {
  if (looking) { again = true; return; }
  if (due && delay > PAUSE) return;
  clearTimeout(due);
  due = setTimeout(look, delay);
}

async function look() {
  if (looking) { again = true; return; }
  looking = true;
  due = null;
  try {
    const [gpus, jobs, over, status] = await Promise.all([
      ask("GET", "/gpus"), ask("GET", `/jobs?columns=true&fold=true&limit=${AT_MOST}`), ask("GET", "/history?limit=20"),
      ask("GET", "/status"),
    ]);
    show(gpus, jobs, over, status);
    if ($("line").dataset.state !== "ok" && stream.readyState === EventSource.OPEN) say("ok", "live");
  } catch (error) {
    if (error instanceof Refused && error.status === 401) return wantToken();
    if (error instanceof Refused) say("lost", error.message);
  } finally {
    looking = false;
  }
  plan(again ? PAUSE : SLOW);
  again = false;
}

function say(state, text) {
  document.body.classList.toggle("away", state !== "ok");
  for (const button of document.querySelectorAll("#queue button")) button.disabled = state !== "ok";
  $("line").dataset.state = state;
  $("line").textContent = text;
}

// -- what is shown; texts are put in as texts, never as HTML

function show(machine, listing, history, status) {
  $("day").textContent = `${machine.simulated ? "simulated GPUs · " : ""}policy ${status.policy}`;
  const names = new Map(listing.columns.id.map((id, n) => [id, listing.columns.name[n]]));
  $("gpus").replaceChildren(...machine.gpus.map((gpu) => tile(gpu, names)));
  const rows = listing.columns.id.map((id, n) => Object.fromEntries(
    Object.entries(listing.columns).map(([name, column]) => [name, column[n]])));
  const shown = rows.length === AT_MOST ? `, the first ${AT_MOST} rows shown` : "";
  $("queue-count").textContent = listing.total ? `${listing.total} ${listing.total === 1 ? "job" : "jobs"}${shown}` : "";
  fill("queue", rows.map((job) => waiting(job, listing.now)),
    "Nothing runs and nobody waits. In a terminal on this machine: gpuyard submit -- python train.py");
  fill("over", history.jobs.map(finished), "Nothing has ended yet.");
}

function tile(gpu, names) {
  const used = gpu.memory_total ? (gpu.memory_used || 0) / gpu.memory_total : 0;
  const bar = make("progress", "", "");
  bar.max = 1;
  bar.value = used;
  bar.setAttribute("aria-label", `memory of GPU ${gpu.index}`);
  const facts = [
    gpu.utilization == null ? null : `${Math.round(gpu.utilization)} %`,
    `${gib(gpu.memory_used)} of ${gib(gpu.memory_total)}`,
    gpu.temperature == null ? null : `${Math.round(gpu.temperature)} °C`,
    gpu.power == null ? null : `${Math.round(gpu.power)} W`,
  ];
  const who = gpu.jobs.length ? gpu.jobs.map((id) => `${id} ${names.get(id) || ""}`.trim()).join(", ") : gpu.why;
  const found = make("div", "", `tile ${gpu.state}`);
  found.append(make("h3", `GPU ${gpu.index} · ${gpu.state}`), make("p", gpu.name), bar,
    make("p", facts.filter(Boolean).join(" · ")), make("p", who || ""));
  return found;
}

function waiting(job, now) {
  const runs = job.state === "running";
  const since = runs ? job.started : job.waiting_since;
  const far = job.progress ? `${Math.round(100 * job.progress.fraction)} %` : "";
  const gpus = runs ? job.gpus.join(", ") : `${job.gpu_count} wanted`;
  const row = make("tr");
  row.append(make("td", job.id, "id"), make("td", job.name, "name"), make("td", job.user), make("td", job.state, job.state),
    make("td", gpus), make("td", span(now - since)), make("td", [far, job.reason].filter(Boolean).join(" · "), "words"),
    action(job));
  return labelled(row, "queue");
}

function finished(job) {
  const ran = job.started_at ? span((Date.parse(job.ended_at) - Date.parse(job.started_at)) / 1000) : "never";
  const row = make("tr");
  row.append(make("td", job.id, "id"), make("td", job.name, "name"), make("td", job.user), make("td", job.state, job.state),
    make("td", job.gpus.join(", ")), make("td", new Date(job.ended_at).toLocaleString()), make("td", ran),
    make("td", job.reason || "", "words"));
  return labelled(row, "over");
}

// On a phone rows are cards, and each cell says what it is.
function labelled(row, table) {
  const heads = $(table).tHead.rows[0].cells;
  for (const [n, cell] of [...row.cells].entries()) cell.dataset.label = heads[n].textContent;
  return row;
}

function action(job) {
  const cell = make("td");
  if (me.role !== "admin" && (me.role !== "user" || job.user !== me.user)) return cell;
  const button = make("button", "Cancel");
  button.type = "button";
  button.setAttribute("aria-label", `cancel job ${job.id}`);
  button.addEventListener("click", () => cancel(job, button));
  cell.append(button);
  return cell;
}

async function cancel(job, button) {
  if (!confirm(`End job ${job.id} (${job.name}) of ${job.user}?`)) return;
  button.disabled = true;
  try {
    await ask("POST", `/jobs/${encodeURIComponent(job.id)}/cancel`, {});
    tell("");
  } catch (error) {
    tell(error instanceof Refused ? error.message : "the daemon does not answer; the job was not ended");
    button.disabled = false;
  }
  look();
}

function tell(message) {
  $("news").textContent = message;
  $("news").hidden = !message;
}

function fill(id, rows, empty) {
  const body = $(id).tBodies[0];
  if (!rows.length) {
    const cell = make("td", empty, "empty");
    cell.colSpan = 8;
    rows = [make("tr")];
    rows[0].append(cell);
  }
  body.replaceChildren(...rows);
}

function make(tag, text = "", kind = "") {
  const found = document.createElement(tag);
  found.textContent = text;
  if (kind) found.className = kind;
  return found;
}

function gib(bytes) {
  return bytes == null ? "?" : `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}

function span(seconds) {
  const s = Math.max(0, Math.round(seconds)), two = (n) => String(n).padStart(2, "0");
  const days = Math.floor(s / 86400), hours = Math.floor(s / 3600) % 24, minutes = Math.floor(s / 60) % 60;
  return (days ? `${days}-${two(hours)}:` : hours ? `${hours}:` : "") + `${hours || days ? two(minutes) : minutes}:${two(s % 60)}`;
}

begin();
