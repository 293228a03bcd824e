// The search. What is searched for stands in the address, after the #, so that it can be sent to someone: the
// id of an image of the index, or what the model saw in a picture (its embedding); the picture itself is not
// in it. The server never gets what stands after the #.
import * as groups from "./groups.js";
import * as labels from "./labels.js";
import { talk } from "./server.js";
import { address, conditions, setConditions, showColumns, showGroups, showImages } from "./results.js";

// MOST: images of an answer, as the server allows.
const STEP = 24, MOST = 1000, LEAST_PART = 0.02;
const at = Object.fromEntries([...document.querySelectorAll("[id]")].map(element => [element.id, element]));
// Pictures of this visit, by their embedding, so that the button Back shows them.
const pictures = new Map();
let asked = {}, described = -1, request = new AbortController(), timer = 0, part = null;

// The address. What someone cut short or made up in it counts as absent.

function read() {
  const fields = new URLSearchParams(location.hash.slice(1)), vector = fields.get("vector") || undefined;
  const k = Number(fields.get("k")), least = Number(fields.get("min"));
  return {
    id: fields.get("id") || undefined, vector, model: fields.get("model") || undefined, ...pictures.get(vector),
    box: readBox(fields.get("box")) || pictures.get(vector)?.box,
    k: Number.isInteger(k) && k >= 1 && k <= MOST ? k : STEP, least: least > 0 && least <= 1 ? least : 0,
    distinct: fields.has("distinct"), where: readWhere(fields.get("where")), copies: fields.has("copies"),
    groups: fields.has("groups"), group: fields.get("group") ?? undefined,
  };
}

function readBox(text) {
  const box = text ? text.split(",").map(Number) : [], [left, top, width, height] = box;
  const good = box.length === 4 && left >= 0 && top >= 0 && width > 0 && height > 0 && left + width <= 1.001 && top + height <= 1.001;
  return good ? [left, top, Math.min(width, 1 - left), Math.min(height, 1 - top)] : undefined;
}

function readWhere(text) {
  let where;
  try { where = JSON.parse(text); } catch { return {}; }
  return where && typeof where === "object" && !Array.isArray(where) ? where : {};
}

function written(state) {
  const fields = new URLSearchParams();
  if (state.copies) fields.set("copies", "1");
  if (state.groups) fields.set("groups", "1");
  if (state.group !== undefined) fields.set("group", state.group);
  if (state.id) fields.set("id", state.id);
  if (state.vector) fields.set("vector", state.vector);
  if (state.vector && state.model) fields.set("model", state.model);
  if (state.id && state.box) fields.set("box", state.box.map(share => share.toFixed(3)).join(","));
  if (state.k !== STEP) fields.set("k", state.k);
  if (state.least) fields.set("min", state.least);
  if (state.distinct) fields.set("distinct", "1");
  if (Object.keys(state.where || {}).length) fields.set("where", JSON.stringify(state.where));
  return `#${fields}`;
}

// Talking to the server. Only the last request is waited for.

function ask(path, options = {}) {
  request.abort();
  request = new AbortController();
  return talk(path, { ...options, signal: request.signal });
}

function body(state) {
  const form = new FormData();
  if (state.file && (!state.vector || state.fresh)) form.set("file", state.file);
  else if (state.vector) form.set("vector", state.vector);
  else form.set("id", state.id);
  // To a model that came since, the vector says nothing.
  if (form.has("vector") && state.model) form.set("model", state.model);
  if (state.box && !form.has("vector")) form.set("box", state.box.join(","));
  form.set("k", state.k);
  form.set("where", JSON.stringify(state.where));
  if (state.least) form.set("min_similarity", state.least);
  form.set("exclude_duplicates", state.distinct);
  return form;
}

// Searches for what `changes` make of the last search, and shows what is found.
async function go(changes, { replace = false, focus = false } = {}) {
  asked = { ...asked, ...changes };
  const state = asked;
  show(state);
  busy(true);
  try {
    const title = await view(state);
    // Somebody has gone elsewhere meanwhile.
    if (state !== asked) return;
    if (state.fresh) state.fresh = false;
    history[replace ? "replaceState" : "pushState"](null, "", written(state));
    at.heading.textContent = document.title = title;
    // Browsers have no clipboard for pages of another machine without TLS; the address bar has the address.
    at.share.hidden = !(state.id || state.vector) || !navigator.clipboard;
    labels.show();
    if (focus) at.heading.focus();
    if (state.vector && state.labelled) classify(state).catch(() => {});
  } catch (error) {
    if (error.name === "AbortError" || state !== asked) return;
    for (const place of [at.results, at.groups]) place.replaceChildren();
    at.more.hidden = true;
    say(error.message);
  }
  busy(false);
}

function say(error) {
  at.status.textContent = "";
  at.error.textContent = error;
  at.error.hidden = false;
}

// Shows what was asked for, and returns its title.
function view(state) {
  if (state.copies) return findCopies(state);
  if (state.groups) return showAllGroups(state);
  if (state.group !== undefined) return showGroup(state);
  return state.id || state.vector || state.file ? find(state) : begin();
}

async function find(state) {
  let answer;
  try {
    answer = await ask("v1/search", { method: "POST", body: body(state) });
  } catch (error) {
    if (error.status !== 409 || !state.file || state.fresh) throw error;
    state.fresh = true;
    return find(state);
  }
  if (answer.vector && state.file) {
    Object.assign(state, { vector: answer.vector, model: answer.model });
    pictures.set(answer.vector, { file: state.file, box: state.box });
  }
  showImages(at.results, answer.results, choose);
  const count = answer.results.length, nearest = answer.results[0]?.similarity;
  at.status.textContent = count
    ? `${count} image${count > 1 ? "s" : ""}, the most similar first. The nearest has a similarity of ${nearest.toFixed(2)}. ${answer.promise} ${answer.searched}`
    : "Nothing is similar enough. Lower the least similarity, or change the filter.";
  at.more.hidden = count < state.k || state.k >= MOST;
  state.labelled = answer.results.some(one => one.metadata.label);
  return state.box ? "Similar to this part" : "Similar pictures";
}

// Says which class of the index a picture is of. The results do not wait for it.
async function classify(state) {
  const found = await classified(state);
  const nearest = `${found.nearest} (${Math.round(100 * found.share)} %)`;
  at.class.textContent = found.label ? `Looks like ${nearest}.`
    : found.threshold === null ? `The nearest class is ${nearest}. ${found.promise}`
    : `Looks like none of this index's classes. The nearest is ${nearest}.`;
  at.class.hidden = false;
}

// The file is sent where it is known: if it is that of an image of the index, this has no vote on itself; and where a model
// of its own embeds what is searched by, classes are those of the index's.
function classified(state) {
  const form = new FormData();
  if (state.file) {
    form.set("file", state.file);
    if (state.box) form.set("box", state.box.join(","));
  } else {
    form.set("vector", state.vector);
    if (state.model) form.set("model", state.model);
  }
  return ask("v1/classify", { method: "POST", body: form });
}

async function begin() {
  const answer = await ask("v1/items?k=30");
  showImages(at.results, answer.results, choose);
  if (answer.images !== described) describe().catch(error => say(error.message));
  at.status.textContent = `Choose a picture of your own, or begin with one of these, of ${answer.images.toLocaleString("en")} in the index.`;
  return "Search by a picture";
}

async function findCopies(state) {
  const answer = await ask(`v1/duplicates?limit=${state.k}`);
  showGroups(at.groups, answer.groups, choose);
  at.more.hidden = answer.groups.length >= answer.total || state.k >= MOST;
  const first = answer.groups.length < answer.total ? `, the first ${answer.groups.length} shown,` : "";
  at.status.textContent = answer.total
    ? `${answer.total} group${answer.total > 1 ? "s" : ""}${first} of images with a similarity of ${answer.min_similarity.toFixed(2)} and more.`
    : `No two images have a similarity of ${answer.min_similarity.toFixed(2)} or more.`;
  return "Near copies";
}

async function showAllGroups(state) {
  request.abort();
  await labels.refresh();
  if (state !== asked) return;
  busy(true, at.groups);
  // What is proposed arrives later: nobody waits for it.
  groups.showAll(at.groups, group => go({ ...NOTHING, group }, { focus: true }), () => go({}, { replace: true }), ask, words => { at.status.textContent = words; })
    .catch(error => { if (error.name === "AbortError") throw error; say(error.message); })
    .then(() => busy(false, at.groups), () => {});
  return "Groups";
}

async function showGroup(state) {
  const { results } = await ask(`v1/items?k=${state.k}&label=${encodeURIComponent(state.group)}`);
  showImages(at.results, results, choose);
  at.status.textContent = results.length ? `The first ${labels.pictures(results.length)} of the group.` : "The group has no pictures.";
  at.more.hidden = results.length < state.k || state.k >= MOST;
  if (results.length < state.k) at.status.textContent = labels.pictures(results.length);
  return state.group || "Without a group";
}

// Showing what is searched for.

function busy(is, place = at.results) {
  place.setAttribute("aria-busy", is);
  if (is) at.error.hidden = at.class.hidden = true;
}

function show(state) {
  const queried = state.id || state.vector || state.file;
  document.body.classList.toggle("empty", !(queried || state.groups || state.group !== undefined));
  at.picture.hidden = !(state.id || state.file);
  at.narrow.hidden = !queried;
  at.sent.hidden = !(state.vector && !state.file);
  if (state.file) setPicture(state.file);
  else if (state.id) setPicture(state.id);
  (state.copies || state.groups ? at.results : at.groups).replaceChildren();
  busy(false, at.groups);
  at.more.hidden = true;
  at.least.value = state.least;
  at["least-shown"].textContent = state.least ? state.least.toFixed(2) : "any";
  at.distinct.checked = state.distinct;
  const filters = Object.keys(state.where).length;
  at.filtered.textContent = filters ? ` (${filters})` : "";
  at.narrowed.textContent = filters || state.least || state.distinct ? " (narrowed)" : "";
  setConditions(at.columns, state.where);
  showPart(state.box);
  at.whole.hidden = !state.box;
}

function setPicture(source) {
  if (at.shown.source === source) return;
  if (at.shown.src.startsWith("blob:")) URL.revokeObjectURL(at.shown.src);
  at.shown.source = source;
  at.shown.className = "";
  at.shown.onload = () => {
    const { naturalWidth: width, naturalHeight: height } = at.shown;
    at.frame.style.setProperty("--ratio", width / height);
    at.shown.className = Math.max(width, height) < 64 ? "tiny" : "";
  };
  // The original file if it still lies where it was indexed.
  at.shown.onerror = () => { at.shown.onerror = null; if (typeof source === "string") at.shown.src = address(source, "thumbnail"); };
  at.shown.src = typeof source === "string" ? address(source, "image") : URL.createObjectURL(source);
}

function showPart(box) {
  part = box || null;
  at.box.hidden = !box;
  if (box) ["left", "top", "width", "height"].forEach((side, i) => { at.box.style[side] = `${box[i] * 100}%`; });
}

// What starts a search.

const NOTHING = { id: undefined, vector: undefined, model: undefined, file: undefined, box: undefined, copies: false, groups: false, group: undefined, k: STEP };

function choose(id) {
  go({ ...NOTHING, id }, { focus: true });
  scrollTo({ top: 0 });
}

async function take(files) {
  if (files.length > 1) say(`${files.length} files came. Choose one picture at a time.`);
  else if (files[0]) {
    const [{ name, type }] = files;
    try {
      // Now, as the file may change or go away while its parts are searched.
      go({ ...NOTHING, file: new File([await files[0].arrayBuffer()], name, { type }) }, { focus: true });
    } catch {
      say(`${name || "The file"} cannot be read. If it is a folder, choose a picture in it.`);
    }
  }
}

function searchPart(box) {
  // A part of a picture has another embedding than the picture.
  go({ box: box || undefined, vector: asked.file ? undefined : asked.vector, fresh: true, k: STEP });
}

function later(changes) {
  clearTimeout(timer);
  timer = setTimeout(() => go(changes, { replace: true }), 200);
}

at.file.addEventListener("change", () => { take(at.file.files); at.file.value = ""; });
document.addEventListener("paste", event => take([...event.clipboardData.files]));
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, event => {
    event.preventDefault();
    document.body.classList.toggle("dragging", kind === "dragover");
    if (kind === "drop") take(event.dataTransfer.files);
  });
}
at.home.addEventListener("click", event => { event.preventDefault(); go({ ...NOTHING, where: {}, least: 0, distinct: false }); });
at.copies.addEventListener("click", () => go({ ...NOTHING, copies: true }, { focus: true }));
at.grouping.addEventListener("click", () => go({ ...NOTHING, groups: true }, { focus: true }));
at.more.addEventListener("click", async () => {
  const place = asked.copies ? at.groups : at.results, first = place.children.length;
  await go({ k: Math.min(asked.k + STEP, MOST) }, { replace: true });
  place.children[first]?.querySelector("button").focus();
});
at.share.addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(location.href);
  } catch {
    at.status.textContent = "The browser did not allow it. Copy the address from its address bar.";
    return;
  }
  at.status.textContent = asked.file
    ? "Copied. The address holds what the model saw in the picture, not the picture."
    : "The address of this search is copied.";
});
at.options.addEventListener("submit", event => event.preventDefault());
at.least.addEventListener("input", () => {
  const least = Number(at.least.value);
  at["least-shown"].textContent = least ? least.toFixed(2) : "any";
  later({ least });
});
at.distinct.addEventListener("change", () => later({ distinct: at.distinct.checked }));
at.whole.addEventListener("click", () => searchPart(null));
addEventListener("popstate", () => {
  // The address that a server printed may be put into a tab that shows the page.
  if (labels.takeKey()) labels.refresh().catch(error => say(error.message));
  go({ ...NOTHING, ...read() }, { replace: true });
});

// The box.

let corner = null;

function shareOf(event) {
  const { left, top, width, height } = at.shown.getBoundingClientRect(), inside = value => Math.min(1, Math.max(0, value));
  return [inside((event.clientX - left) / width), inside((event.clientY - top) / height)];
}

function between([x, y], [u, v]) {
  return [Math.min(x, u), Math.min(y, v), Math.abs(x - u), Math.abs(y - v)];
}

at.frame.addEventListener("pointerdown", event => {
  if (event.button) return;
  at.frame.setPointerCapture(event.pointerId);
  corner = shareOf(event);
});
at.frame.addEventListener("pointermove", event => { if (corner) showPart(between(corner, shareOf(event))); });
at.frame.addEventListener("pointerup", event => {
  if (!corner) return;
  const box = between(corner, shareOf(event));
  corner = null;
  // A click without a drag is no box.
  if (Math.min(box[2], box[3]) >= LEAST_PART) searchPart(box);
  else showPart(asked.box);
});
at.frame.addEventListener("pointercancel", () => { corner = null; showPart(asked.box); });
at.frame.addEventListener("keydown", event => {
  const step = { ArrowLeft: [-0.05, 0], ArrowRight: [0.05, 0], ArrowUp: [0, -0.05], ArrowDown: [0, 0.05] }[event.key];
  if (step) {
    event.preventDefault();
    showPart(moved(part || [0.25, 0.25, 0.5, 0.5], step, event.shiftKey));
    at.status.textContent = `Part: ${part.map((share, i) => `${["left", "top", "width", "height"][i]} ${Math.round(share * 100)} %`).join(", ")}. Enter searches.`;
  } else if (event.key === "Enter" && part) searchPart(part);
  else if (event.key === "Escape" && part) searchPart(null);
});

function moved([x, y, width, height], [right, down], resize) {
  const within = (value, low, high) => Math.min(high, Math.max(low, value));
  return resize
    ? [x, y, within(width + right, 0.05, 1 - x), within(height + down, 0.05, 1 - y)]
    : [within(x + right, 0, 1 - width), within(y + down, 0, 1 - height), width, height];
}

// The start. On wide windows the fields are always open.
const wide = matchMedia("(min-width: 761px)"), fit = () => { at.narrow.open = wide.matches; };
wide.addEventListener("change", fit);
fit();

// Says how many images there are, and what they can be filtered by.
async function describe() {
  const columns = await talk("v1/columns");
  described = columns.images;
  at.facts.textContent = `${described.toLocaleString("en")} images`;
  showColumns(at.columns, columns.columns, () => later({ where: conditions(at.columns), k: STEP }));
  setConditions(at.columns, asked.where);
  at.filter.hidden = !at.columns.children.length;
}

// After a change, what shows labels is shown anew; results of a search stay where they are.
const reload = changed => (!changed || asked.groups || asked.group !== undefined) && go({}, { replace: true });
labels.start(reload, () => describe().catch(error => say(error.message)));
asked = read();
at.filter.hidden = true;
try {
  await describe();
  at.filter.open = Object.keys(asked.where).length > 0;
  await Promise.all([go({}, { replace: true }), labels.refresh()]);
} catch (error) {
  // A search that was begun meanwhile goes on.
  if (error.name !== "AbortError") say(error.message);
}
