// Keeps live parts current, and the page usable from the keyboard. Without it every page still shows everything.
"use strict";

const EVERY_MS = 2000;

// Live parts: the same page again, its parts put in place of ours. The server escaped them; nothing is built from text.
const live = document.querySelectorAll("[data-live]");
let failedSince = 0;

async function refresh() {
  if (document.hidden || document.querySelector("[data-live] details[open], [data-live] :focus")) return;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const at = current();
  const marked = at ? at.dataset.open : null;
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = fresh.querySelector(`[data-live="${part.dataset.live}"]`);
    if (next) part.replaceWith(document.adoptNode(next));
  }
  if (marked) mark(rows().find((row) => row.dataset.open === marked));
}

async function keepCurrent() {
  const stale = document.getElementById("stale");
  try {
    await refresh();
    failedSince = 0;
    stale.hidden = true;
  } catch (error) {
    failedSince = failedSince || Date.now();
    stale.textContent = `no answer for ${Math.round((Date.now() - failedSince) / 1000)} s: what you see is old`;
    stale.hidden = false;
  }
  setTimeout(keepCurrent, EVERY_MS);
}

if (live.length) setTimeout(keepCurrent, EVERY_MS);

// Light or dark: the reader's choice, kept by the browser.
const theme = localStorage.getItem("theme");
if (theme) document.documentElement.dataset.theme = theme;

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
}

// Rows: j and k walk them, Enter opens one.
const rows = () => [...document.querySelectorAll("[data-row]")];
const current = () => document.querySelector("[data-row].at");

function mark(row) {
  const before = current();
  if (before) before.classList.remove("at");
  if (!row) return;
  row.classList.add("at");
  row.scrollIntoView({ block: "nearest" });
}

function walk(step, fits = () => true) {
  const all = rows();
  let index = all.indexOf(current());
  if (index < 0 && step < 0) return;
  for (index += step; index >= 0 && index < all.length; index += step) {
    if (fits(all[index])) return mark(all[index]);
  }
}

function openRow() {
  const row = current();
  if (!row) return;
  if (row.dataset.open) location.href = row.dataset.open;
  else if (row.tagName === "DETAILS") row.open = !row.open;
}

function follow(selector) {
  const link = document.querySelector(selector);
  if (link) location.href = link.href;
}

const keys = {
  j: () => walk(1),
  k: () => walk(-1),
  m: () => walk(1, (row) => row.classList.contains("mistake")),
  x: () => current() && current().classList.toggle("folded"),
  Enter: openRow,
  t: switchTheme,
  u: () => follow(document.querySelector("[data-up]") ? "[data-up]" : ".brand"),
  "?": () => document.getElementById("help").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input, select, textarea, button, a, summary")) return;
  if (keys[event.key]) keys[event.key]();
  else if (/^[a-z]$/.test(event.key)) follow(`[data-key="${event.key}"]`);
  else return;
  event.preventDefault();
});

document.getElementById("theme").addEventListener("click", switchTheme);
document.getElementById("keys").addEventListener("click", keys["?"]);
document.addEventListener("submit", (event) => {
  const ask = event.target.dataset.ask;
  if (ask && !confirm(ask)) event.preventDefault();
});
