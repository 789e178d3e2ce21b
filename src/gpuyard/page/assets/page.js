// What every page does in the browser by itself: the theme, the zone, logging in and out, copying a command.
"use strict";

function gyCookie(name, value) {
  document.cookie = `${name}=${encodeURIComponent(value)}; path=/; max-age=31536000; samesite=strict`;
}

gyCookie("gpuyard_zone", Intl.DateTimeFormat().resolvedOptions().timeZone || "");

function gyTheme() {
  const dark = !document.body.classList.contains("body--dark");
  Quasar.Dark.set(dark);
  gyCookie("gpuyard_theme", dark ? "dark" : "light");
}

async function gySession(method, body, headers = {}) {
  return fetch("/api/v1/session", {
    method,
    headers: { "Content-Type": "application/json", ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
}

// What shows the daemon that a page of its own asks, where there is a session.
async function gyOurs() {
  const answer = await gySession("GET");
  const who = answer.ok ? await answer.json() : {};
  return who.csrf ? { "X-CSRF-Token": who.csrf } : {};
}

// Where to go after the door: a page of ours, whatever the address says. A browser reads "/<tab>/x" as "//x".
function gyNext() {
  const given = new URLSearchParams(location.search).get("next") || "/";
  try {
    const next = new URL(given, location.origin);
    return next.origin === location.origin ? next.href : "/";
  } catch {
    return "/";
  }
}

async function gyLogIn(event) {
  event.preventDefault();
  const refusal = document.getElementById("refusal");
  refusal.textContent = "";
  try {
    const given = { token: document.getElementById("token").value.trim() };
    let answer = await gySession("POST", given);
    if (answer.status === 403) {
      answer = await gySession("POST", given, await gyOurs()); // somebody was logged in here already
    }
    if (answer.ok) {
      document.cookie = "gpuyard_came_in=yes; path=/; samesite=strict"; // so that the door can say why, if it asks again
      location.assign(gyNext());
    } else {
      const { detail } = await answer.json();
      refusal.textContent = `${detail.charAt(0).toUpperCase()}${detail.slice(1)}.`;
    }
  } catch {
    refusal.textContent = "The daemon does not answer; try again in a moment.";
  }
}

async function gyLogOut() {
  await gySession("DELETE", undefined, await gyOurs());
  document.cookie = "gpuyard_came_in=; path=/; max-age=0; samesite=strict";
  location.assign("/login");
}

async function gyCopy(element) {
  const text = element.textContent;
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
  } else {
    // Without TLS there is no clipboard but this one.
    const range = document.createRange();
    range.selectNodeContents(element);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    document.execCommand("copy");
  }
  Quasar.Notify.create({ message: "Copied", timeout: 1200, position: "bottom" });
}

// A sentence of the daemon's, with its times as this browser's clock has them.
function gyWords(text) {
  return (text || "").replace(/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)/g, (found) => {
    const at = new Date(found);
    const clock = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
    if (at.toDateString() === new Date().toDateString()) return clock;
    return `${at.toLocaleDateString([], { day: "numeric", month: "short" })}, ${clock}`;
  });
}

// Called with the time since when the daemon lives; tells once if that is not the one that this tab saw before.
function gyLife(since) {
  const before = sessionStorage.getItem("gpuyard_since");
  sessionStorage.setItem("gpuyard_since", since);
  if (before && before !== since) {
    Quasar.Notify.create({ message: `The daemon was restarted at ${gyWords(since)}; jobs went on.`, type: "info", timeout: 8000 });
  }
}
