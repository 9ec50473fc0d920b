/**
 * The tokens of a row as text. Made by hand, not by Preact: a hundred thousand elements in blocks that the browser lays
 * out only when they come into sight.
 */
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks'
import { type ColourBy, classesOf } from '../lib/colours.ts'
import { visible } from '../lib/format.ts'
import { type ReadRow, textAt } from '../lib/row-texts.ts'

/** Tokens to a block. */
const BLOCK = 400

interface HeatMapProps {
  read: ReadRow
  by: ColourBy
  /** Kept in sight; -1: none. */
  selected: number
  /** Places that are marked, as where two rows differ. */
  marked?: ReadonlySet<number>
  /** Only these tokens. Default: all. */
  from?: number
  to?: number
  onSight?(place: number, element: HTMLElement | undefined): void
  onPick?(place: number): void
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
  useLayoutEffect(() => {
    const classOf = classesOf(read, by)
    const blocks: HTMLElement[] = []
    for (let start = from; start < to; start += BLOCK) {
      const block = document.createElement('div')
      block.className = 'block'
      for (let place = start; place < Math.min(to, start + BLOCK); place += 1) {
        const span = document.createElement('span')
        const text = textAt(read, place)
        span.className = `${classOf(place)}${/^\n+$/.test(text) ? ' nl' : ''}${marked?.has(place) ? ' differs' : ''}`
        span.textContent = visible(text)
        span.dataset.t = String(place)
        block.append(span)
      }
      blocks.push(block)
    }
    box.current!.replaceChildren(...blocks)
  }, [read, from, to, marked])
  // Colours change in place: the text stays, and with it what the browser has found in it.
  const painted = useRef(by)
  useEffect(() => {
    if (painted.current === by) return
    painted.current = by
    const classOf = classesOf(read, by)
    for (const span of box.current!.querySelectorAll('span')) {
      const kept = [...span.classList].filter(
        (name) => name === 'nl' || name === 'differs' || name === 'here',
      )
      span.className = [classOf(Number(span.dataset.t)), ...kept].join(' ')
    }
  }, [by])
  useEffect(() => {
    box.current!.querySelector('.here')?.classList.remove('here')
    const span = selected >= from && selected < to ? spanAt(box.current!, selected - from) : undefined
    span?.classList.add('here')
    span?.scrollIntoView({ block: 'center' })
  }, [selected, read, from, to])
  const over = useRef<number | undefined>(undefined)
  const placeOf = (event: Event) => {
    const span =
      event.target instanceof HTMLElement ? event.target.closest<HTMLElement>('span[data-t]') : null
    return span ? { place: Number(span.dataset.t), span } : undefined
  }
  return (
    <div
      class="heat-map"
      ref={box}
      // Not `mouseover`: it also comes when a key scrolls the text below a pointer that rests.
      onMouseMove={(event) => {
        const found = placeOf(event)
        if (over.current === found?.place) return
        over.current = found?.place
        onSight?.(found?.place ?? -1, found?.span)
      }}
      onMouseLeave={() => {
        over.current = undefined
        onSight?.(-1, undefined)
      }}
      onClick={(event) => {
        const found = placeOf(event)
        if (found) onPick?.(found.place)
      }}
      onKeyDown={() => {}}
    />
  )
}

function spanAt(box: HTMLElement, offset: number): HTMLElement | undefined {
  return box.children[Math.floor(offset / BLOCK)]?.children[offset % BLOCK] as HTMLElement | undefined
}
