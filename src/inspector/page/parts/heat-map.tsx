/**
 * Shows the tokens of a row as coloured text. It is built from blocks of text, without Preact: the browser can search
 * all of them, and a block is split into one element per token only when it approaches the viewport.
 */
import { useLayoutEffect, useRef } from 'preact/hooks'
import { type ColourProperty, createClassGetter } from '../lib/colours.ts'
import { revealExactly } from '../lib/format.ts'
import { getTokenText, joinTokenTexts, type RowData } from '../lib/row-texts.ts'

/** The number of tokens per block. */
const BLOCK = 400

/** The distance from the viewport at which blocks are coloured, so that scrolling shows no plain text. */
const NEAR = '600px'

interface HeatMapProps {
  read: RowData
  by: ColourProperty
  /** The position of the token that is scrolled into view; -1: none. */
  selected: number
  /** The positions of marked tokens, such as the first one that differs in another row. */
  marked?: ReadonlySet<number>
  /** The range of positions that is shown, `to` exclusive. Default: all. */
  from?: number
  to?: number
  /** Called when the pointer moves to a token (with its element) or leaves the text (with -1). */
  onSight?(index: number, element: HTMLElement | undefined): void
  onPick?(index: number): void
}

export function HeatMap({
  read,
  by,
  selected,
  marked,
  from = 0,
  to = read.ids.length,
  onSight,
  onPick,
}: HeatMapProps) {
  const box = useRef<HTMLDivElement>(null)
  const blocks = useRef<Blocks | undefined>(undefined)
  useLayoutEffect(() => {
    const made = new Blocks(box.current!, { read, from, to, marked, by })
    blocks.current = made
    return () => made.disconnect()
  }, [read, from, to, marked])
  // A layout effect, so that the result of a key press is visible immediately.
  useLayoutEffect(() => blocks.current!.paint(by), [by])
  useLayoutEffect(() => blocks.current!.select(selected), [selected, read, from, to])
  const over = useRef<number | undefined>(undefined)
  const getPosition = (event: Event) => {
    const span =
      event.target instanceof HTMLElement ? event.target.closest<HTMLElement>('span[data-t]') : null
    return span ? { place: Number(span.dataset.t), span } : undefined
  }
  return (
    <div
      class="heat-map"
      ref={box}
      // `mouseover` would also fire when a key scrolls the text below a resting pointer.
      onMouseMove={(event) => {
        const found = getPosition(event)
        if (over.current === found?.place) return
        over.current = found?.place
        onSight?.(found?.place ?? -1, found?.span)
      }}
      onMouseLeave={() => {
        over.current = undefined
        onSight?.(-1, undefined)
      }}
      onClick={(event) => {
        const found = getPosition(event)
        if (found) onPick?.(found.place)
      }}
      onKeyDown={() => {}}
    />
  )
}

interface BlocksOptions {
  read: RowData
  from: number
  to: number
  marked: ReadonlySet<number> | undefined
  by: ColourProperty
}

/** The blocks of text, and their tokens once they are near the viewport. */
class Blocks {
  readonly #box: HTMLElement
  readonly #options: BlocksOptions
  readonly #near: IntersectionObserver
  /** The first position of each block that is not split into tokens yet. */
  readonly #bare = new Map<Element, number>()
  #by: ColourProperty
  #here: HTMLElement | undefined

  constructor(box: HTMLElement, options: BlocksOptions) {
    this.#box = box
    this.#options = options
    this.#by = options.by
    this.#near = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries) if (isIntersecting) this.#fill(target)
      },
      { root: box.parentElement, rootMargin: NEAR },
    )
    const { read, from, to } = options
    for (let start = from; start < to; start += BLOCK) {
      const block = document.createElement('div')
      block.className = 'block'
      block.textContent = revealExactly(joinTokenTexts(read, start, Math.min(to, start + BLOCK)))
      this.#bare.set(block, start)
    }
    box.replaceChildren(...this.#bare.keys())
    for (const block of this.#bare.keys()) this.#near.observe(block)
  }

  disconnect(): void {
    this.#near.disconnect()
  }

  /** Changes the colours in place, so that the text and the browser's search results stay. */
  paint(by: ColourProperty): void {
    if (this.#by === by) return
    this.#by = by
    const getClass = createClassGetter(this.#options.read, by)
    for (const span of this.#box.querySelectorAll('span')) {
      const kept = [...span.classList].filter(
        (name) => name === 'nl' || name === 'differs' || name === 'here',
      )
      span.className = [getClass(Number(span.dataset.t)), ...kept].join(' ')
    }
  }

  /** Highlights a token and scrolls it into view. */
  select(index: number): void {
    const { from, to } = this.#options
    this.#here?.classList.remove('here')
    this.#here = undefined
    const block = this.#box.children[Math.floor((index - from) / BLOCK)] as HTMLElement | undefined
    if (index < from || index >= to || block === undefined) return
    this.#fill(block)
    // An unpainted block has an estimated height, so that the browser could not scroll to the token.
    block.style.contentVisibility = 'visible'
    this.#here = block.children[(index - from) % BLOCK] as HTMLElement
    this.#here.classList.add('here')
    this.#here.scrollIntoView({ block: 'center' })
  }

  #fill(block: Element): void {
    const start = this.#bare.get(block)
    if (start === undefined) return
    this.#bare.delete(block)
    this.#near.unobserve(block)
    const { read, to, marked } = this.#options
    const getClass = createClassGetter(read, this.#by)
    const spans: HTMLElement[] = []
    for (let index = start; index < Math.min(to, start + BLOCK); index += 1) {
      const span = document.createElement('span')
      const text = getTokenText(read, index)
      span.className = `${getClass(index)}${/^\n+$/.test(text) ? ' nl' : ''}${marked?.has(index) ? ' differs' : ''}`
      span.textContent = revealExactly(text)
      span.dataset.t = String(index)
      spans.push(span)
    }
    block.replaceChildren(...spans)
  }
}
