"use strict";
// Tables are sorted by a click on a column, keys are filtered, series are switched off and on in the legend, and
// the value of a bar follows the pointer. Without this script the page shows the same figures.
document.body.classList.add("on");

function cellValue(row, place) {
  const cell = row.cells[place];
  return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
}

for (const table of document.querySelectorAll("table")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, place) => {
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "descending";
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((one, other) => {
        const a = cellValue(one, place), b = cellValue(other, place);
        const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
        return down ? order : -order;
      });
      table.tBodies[0].append(...rows);
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}

for (const input of document.querySelectorAll("input.filter")) {
  input.addEventListener("input", () => {
    const wanted = input.value.toLowerCase();
    for (const row of document.getElementById(input.dataset.table).tBodies[0].rows)
      row.classList.toggle("hidden", !row.cells[0].textContent.toLowerCase().includes(wanted));
  });
}

for (const key of document.querySelectorAll("button.key")) {
  key.addEventListener("click", () => {
    const shown = key.getAttribute("aria-pressed") !== "true";
    key.setAttribute("aria-pressed", String(shown));
    const chart = key.closest(".legend").nextElementSibling;
    for (const bar of chart.querySelectorAll("." + key.dataset.series)) bar.classList.toggle("hidden", !shown);
  });
}

const tip = document.createElement("div");
tip.id = "tip";
document.body.append(tip);
for (const bar of document.querySelectorAll("svg rect")) {
  const told = bar.querySelector("title").textContent;
  bar.setAttribute("aria-label", told);
  bar.querySelector("title").remove();
  bar.addEventListener("pointermove", (event) => {
    tip.textContent = told;
    tip.style.display = "block";
    const left = event.clientX + 14;
    tip.style.left = Math.min(left, window.innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = event.clientY + 14 + "px";
  });
  bar.addEventListener("pointerleave", () => { tip.style.display = "none"; });
}
