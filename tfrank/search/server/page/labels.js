// What a person says of labels: pictures are selected by click, Shift, keys or a long press, and the bar says
// what they show. The key comes with the printed address, after the #, and stays in this browser.
import { relabel } from "./results.js";
import { talk } from "./server.js";

// Milliseconds of a long press, and for which the bar says what was done.
const LONG_PRESS = 450, TOLD = 12000;
const at = Object.fromEntries([...document.querySelectorAll("#bar, #bar [id]")].map(element => [element.id, element]));
// The ids that are selected, each with its label; and the card that was selected last, where a range begins.
const selected = new Map();
let last = null, named = false, pressing = 0, telling = 0, pressed = false, reload = () => {}, changed = () => {};
// What the server last said of the labels.
export let known = { groups: [], undo: 0, may_change: false };

// How changes can be made, by what the server takes.
export const WAYS = {
  key: "To change groups, open the address that the server printed, with its key.",
  token: "To change groups, open this page with the server's token, #key=TOKEN at the end of its address.",
  "": "Groups can only be looked at: the server was started without a token. They can be changed where it is started by tfrank serve --token=TOKEN, or without --host, for this machine alone.",
};

// Keeps the key of the address; returns whether there is one.
let held = "";
export function takeKey() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  held = given || held;
  if (given) stored(store => store.setItem("key", given));
  return Boolean(given);
}
takeKey();
export const key = () => ({ Authorization: `Bearer ${stored(store => store.getItem("key")) || held || "none"}` });

// A browser may keep nothing of pages; then the key is that of this visit.
function stored(act) {
  try { return act(localStorage); } catch { return null; }
}

export async function refresh() {
  known = await talk("v1/labels", { headers: key() });
  document.body.classList.toggle("labelling", known.may_change);
  at.names.replaceChildren(...known.groups.map(({ label }) => new Option(label, label)));
  return known;
}

// Changes labels; all cards show what came of it. Who saw older labels is told, and sees the new ones.
async function change(path, fields) {
  try {
    const body = JSON.stringify({ labels_version: known.labels_version, ...fields });
    const answer = await talk(path, { method: "POST", headers: { ...key(), "Content-Type": "application/json" }, body });
    relabel(answer.changed);
    await refresh();
    changed();
    return Object.keys(answer.changed).length;
  } catch (error) {
    if (error.status === 409) {
      await refresh();
      await reload();
      error.message += " The page shows what they are now: look, and say it again.";
    }
    if (error.status === 401) error.message = WAYS[known.secret];
    throw error;
  }
}

// Gives ids, or those of a group, a label, and says so. Returns whether it could.
export async function give(fields) {
  try {
    const count = await change("v1/labels", fields);
    tell(`${pictures(count)}: ${fields.label || "no group"}.`, { undo: count > 0 });
    return true;
  } catch (error) {
    // Pictures that somebody removed meanwhile keep none of the others from their label.
    const left = fields.ids && error.unknown ? fields.ids.filter(id => !error.unknown.includes(id)) : [];
    if (left.length && left.length < fields.ids.length) return give({ ...fields, ids: left });
    tell(error.message, { wrong: true });
    return false;
  }
}

export async function undo() {
  try {
    tell(`Undone for ${pictures(await change("v1/labels/undo", {}))}.`);
    await reload();
  } catch (error) {
    tell(error.message, { wrong: true });
  }
}

export function pictures(count) {
  return `${count.toLocaleString("en")} picture${count === 1 ? "" : "s"}`;
}

// A name for a group without one.
export function freeName() {
  const names = new Set(known.groups.map(({ label }) => label));
  let number = 1;
  while (names.has(`Group ${number}`)) number++;
  return `Group ${number}`;
}

function tell(words, { undo = false, wrong = false } = {}) {
  at.told.textContent = words;
  at.told.classList.toggle("wrong", wrong);
  at.undo.hidden = !undo;
  at.bar.hidden = false;
  clearTimeout(telling);
  if (words && !wrong) telling = setTimeout(leave, TOLD);
}

// Nobody loses what they are about to press; the view of groups can undo it later too.
function leave() {
  if (at.bar.matches(":hover, :focus-within")) telling = setTimeout(leave, TOLD);
  else if (!selected.size) { at.told.textContent = ""; at.bar.hidden = true; }
}

// The selection.

const cards = () => [...document.querySelectorAll("li[data-id]")].filter(card => !card.closest(".proposal"));

function select(card, is) {
  if (is) selected.set(card.dataset.id, card.dataset.label);
  else selected.delete(card.dataset.id);
}

// Selects the card or not; with `range` all from the last one to this one.
function point(card, is, range) {
  const all = cards(), from = all.indexOf(last), to = all.indexOf(card);
  const some = range && from >= 0 ? all.slice(Math.min(from, to), Math.max(from, to) + 1) : [card];
  for (const one of some) select(one, is);
  last = card;
  show();
}

export function show() {
  for (const card of cards()) card.querySelector(".pick").checked = selected.has(card.dataset.id);
  const labels = [...selected.values()].filter(Boolean), count = label => labels.filter(one => one === label).length;
  if (!named) at.name.value = labels.sort((a, b) => count(b) - count(a))[0] || "";
  document.body.classList.toggle("selecting", selected.size > 0);
  at.count.textContent = selected.size ? `${selected.size} selected` : "";
  at.saying.hidden = !selected.size;
  if (selected.size) tell("");
  else at.bar.hidden = !at.told.textContent;
}

function clear() {
  selected.clear();
  named = false;
  show();
}

async function say(label) {
  if (!await give({ ids: [...selected.keys()], label })) return;
  clear();
  await reload(true);
  // The keyboard goes on where it was.
  (last?.isConnected ? last : cards()[0])?.querySelector(".pick").focus();
}

function cardOf(event) {
  return known.may_change ? event.target.closest?.("li[data-id]") : null;
}

document.addEventListener("click", event => {
  const card = cardOf(event), frame = event.target.closest?.(".frame");
  if (pressed) {
    // The click that ends a long press.
    pressed = false;
    if (card) { event.preventDefault(); event.stopPropagation(); }
  } else if (card?.closest(".proposal")) {
    if (frame) { event.stopPropagation(); const pick = card.querySelector(".pick"); pick.checked = !pick.checked; }
  } else if (card && event.target.matches(".pick")) {
    point(card, event.target.checked, event.shiftKey);
  } else if (card && frame && event.detail && (selected.size || event.shiftKey || event.ctrlKey || event.metaKey)) {
    event.stopPropagation();
    point(card, event.shiftKey || !selected.has(card.dataset.id), event.shiftKey);
  }
}, true);
document.addEventListener("pointerdown", event => {
  const card = cardOf(event);
  clearTimeout(pressing);
  pressed = false;
  if (event.pointerType !== "touch" || !card || card.closest(".proposal") || !event.target.closest(".frame")) return;
  pressing = setTimeout(() => { pressed = true; point(card, !selected.has(card.dataset.id), false); }, LONG_PRESS);
});
for (const kind of ["pointerup", "pointercancel"]) document.addEventListener(kind, () => clearTimeout(pressing));
document.addEventListener("contextmenu", event => { if (pressed) event.preventDefault(); });
document.addEventListener("keydown", event => {
  if (event.key === "Escape" && selected.size && event.target.id !== "frame") clear();
});

// The bar. `again` shows the page anew: with true only where labels decide what it shows. `then` follows each change.
export function start(again, then) {
  [reload, changed] = [again, then];
  at.name.addEventListener("input", () => { named = true; });
  at.saying.addEventListener("submit", event => {
    event.preventDefault();
    say(at.name.value.trim() || freeName());
  });
  at.none.addEventListener("click", () => say(""));
  at.clear.addEventListener("click", () => { at.told.textContent = ""; clear(); });
  at.undo.addEventListener("click", undo);
}
