// Markup of the portal, and changes to it (patches.py). `revision` counts both, and `whole` is the revision of the
// last markup. A change applies to the markup that it was made for, once.
const KEPT = ["data-action", "data-subject", "href"];

function keyOf(element) {
  const named = KEPT.filter((name) => element.hasAttribute(name));
  return named.map((name) => `[${name}="${CSS.escape(element.getAttribute(name))}"]`).join("");
}

export default {
  template: `<div></div>`,
  props: { innerHTML: String, whole: Number, revision: Number },
  created() {
    this.shown = null;
    this.at = -1;
    this.nodes = null;
  },
  mounted() {
    this.show();
  },
  updated() {
    this.show();
  },
  methods: {
    show() {
      if (this.whole === this.shown) return;
      const focused = this.$el.contains(document.activeElement) ? keyOf(document.activeElement) : "";
      this.$el.innerHTML = this.innerHTML;
      this.shown = this.whole;
      this.at = this.revision;
      this.nodes = null;
      if (focused) this.$el.querySelector(focused)?.focus({ preventScroll: true });
    },
    change(whole, revision, changes) {
      if (whole !== this.shown || revision <= this.at) return;
      this.at = revision;
      if (this.nodes === null) {
        this.nodes = [];
        const walker = document.createTreeWalker(this.$el, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
        while (walker.nextNode()) this.nodes.push(walker.currentNode);
      }
      for (const [place, change] of changes) {
        const node = this.nodes[place];
        if (typeof change === "string") {
          node.data = change;
          continue;
        }
        for (const [name, value] of Object.entries(change)) {
          if (value === null) node.removeAttribute(name);
          else if (Array.isArray(value)) node.setAttribute(name, node.getAttribute(name) + value[0]);
          else node.setAttribute(name, value);
        }
      }
    },
  },
};
