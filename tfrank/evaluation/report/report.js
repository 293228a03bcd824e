// Enlarges an image that is clicked, or on which Enter is pressed. Escape or another click closes it.
const dialog = document.querySelector("dialog");
const description = dialog.querySelector("p");
const enlarged = new Image();
// Without this script the style sheet does not show images as clickable.
document.documentElement.className = "enlarges";

// `frame` is the button around a thumbnail; its title is the file name.
function enlarge(frame) {
  const thumbnail = frame.querySelector("img");
  enlarged.src = thumbnail.src;
  enlarged.alt = thumbnail.alt;
  enlarged.className = thumbnail.className;
  description.textContent = [frame.title, thumbnail.alt].filter(Boolean).join(" · ");
  dialog.prepend(enlarged);
  dialog.showModal();
}

document.addEventListener("click", event => {
  const frame = event.target.closest("button.frame");
  if (frame) {
    enlarge(frame);
  } else if (dialog.open) {
    dialog.close();
  }
});
