// Shows images: the results of a search, the first of an index, and groups of near copies. Text is only ever
// set as text, so that nothing in the data becomes a part of the page.

export function address(id, kind) {
  return `v1/items/${encodeURIComponent(id)}/${kind}`;
}

export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function nameOf(id, metadata = {}) {
  return metadata.label || id.split("/").pop();
}

// A picture in its own proportions, which can be selected; a click on it calls `choose`.
export function picture({ id, similarity, match = "", metadata = {} }, choose) {
  const known = metadata.width > 0 && metadata.height > 0;
  const certainty = { match: ", a match", perhaps: ", perhaps a match" }[match] || "";
  const image = make("img", { src: address(id, "thumbnail"), alt: "", loading: "lazy", decoding: "async" });
  const frame = make("button", { type: "button", className: "frame", title: id }, image);
  frame.addEventListener("click", () => choose?.(id));
  const pick = make("input", { type: "checkbox", className: "pick" });
  const item = make("li", {}, make("figure", {}, frame, pick, caption(similarity, match)));
  Object.assign(item.dataset, { id, words: similarity === undefined ? "" : `, similarity ${similarity.toFixed(2)}${certainty}` });
  setName(item, metadata.label);
  const setAspect = (width, height) => {
    item.style.setProperty("--aspect", Math.min(Math.max(width / height, 0.5), 2.6).toFixed(3));
    item.classList.toggle("tiny", Math.max(width, height) < 64);
  };
  setAspect(known ? metadata.width : 4, known ? metadata.height : 3);
  if (!known) image.addEventListener("load", () => setAspect(image.naturalWidth, image.naturalHeight));
  return item;
}

function setName(card, label = "") {
  const { id, words } = card.dataset, name = nameOf(id, { label });
  card.dataset.label = label || "";
  Object.assign(card.querySelector(".name"), { textContent: name, title: name });
  card.querySelector(".frame").setAttribute("aria-label", `Search by ${name}${words}`);
  card.querySelector(".pick").setAttribute("aria-label", `Select ${label ? `${name}, ${id.split("/").pop()}` : name}`);
}

// Gives all cards of images other labels, by their ids.
export function relabel(labels) {
  for (const card of document.querySelectorAll("li[data-id]")) if (Object.hasOwn(labels, card.dataset.id)) setName(card, labels[card.dataset.id]);
}

function caption(similarity, match) {
  const label = make("span", { className: "name" });
  if (similarity === undefined) return make("figcaption", {}, label);
  const bar = make("span");
  bar.style.width = `${Math.max(0, Math.min(1, similarity)) * 100}%`;
  const track = make("span", { className: "track" }, bar);
  track.setAttribute("aria-hidden", "true");
  const badge = { match: "match", perhaps: "perhaps" }[match];
  const marks = badge ? [make("span", { className: `badge ${badge}`, textContent: badge })] : [];
  return make("figcaption", {}, make("span", { className: "similarity" }, similarity.toFixed(2), track, ...marks), label);
}

export function showImages(list, images, choose) {
  list.replaceChildren(...images.map(image => picture(image, choose)));
}

export function showGroups(place, groups, choose) {
  place.replaceChildren(...groups.map((ids, number) => {
    const list = make("ol", { className: "gallery" }, ...ids.slice(0, 24).map(id => picture({ id }, choose)));
    const more = ids.length > 24 ? `, the first 24 shown` : "";
    return make("section", { className: "group" }, make("h2", { textContent: `Group ${number + 1}: ${ids.length} images${more}` }), list);
  }));
}

// The fields of the filter, one for each column that has something to choose.
export function showColumns(place, columns, changed) {
  place.replaceChildren(...columns.map(field).filter(Boolean));
  place.onchange = changed;
}

const DULL = new Set(["id", "bytes", "modified"]);

function field({ name, type, values, min, max }) {
  if (DULL.has(name)) return null;
  if (type === "number") {
    if (!(min < max)) return null;
    const ends = [["ge", `${name} from`, min], ["le", "to", max]].map(([comparison, words, end]) => {
      const input = make("input", { type: "number", step: "any", placeholder: end });
      Object.assign(input.dataset, { column: name, comparison });
      return make("label", {}, words, input);
    });
    return make("div", { className: "pair" }, ...ends);
  }
  const choices = type === "truth" ? ["true", "false"] : values;
  if (type !== "text" && type !== "truth" || choices && choices.length < 2) return null;
  const input = choices ? make("select", {}, make("option", { value: "", textContent: "any" }),
    ...choices.map(value => make("option", { value: JSON.stringify(type === "truth" ? value === "true" : value), textContent: value || "(none)" }))) : make("input", { type: "text", placeholder: "any" });
  input.dataset.column = name;
  return make("label", {}, name, input);
}

// The conditions that the fields of the filter hold, as the server takes them.
export function conditions(place) {
  const where = {};
  for (const input of place.querySelectorAll("[data-column]")) {
    const { column, comparison } = input.dataset;
    if (input.value === "") continue;
    if (comparison) where[column] = { ...where[column], [comparison]: Number(input.value) };
    else where[column] = input.tagName === "SELECT" ? JSON.parse(input.value) : input.value;
  }
  return where;
}

export function setConditions(place, where) {
  for (const input of place.querySelectorAll("[data-column]")) {
    const { column, comparison } = input.dataset, condition = where[column];
    const value = comparison ? condition?.[comparison] : condition;
    if (value === undefined || value === null) input.value = "";
    else input.value = input.tagName === "SELECT" ? JSON.stringify(value) : value;
  }
}
