/** A table of any length, of which only the visible rows are rendered. */
import type { ComponentChildren } from 'preact'
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'

/** The height of a row in pixels; the style sheet contains the same number. */
const ROW_HEIGHT = 30

/** The number of rows that are rendered beyond each edge, so that scrolling shows no gap. */
const MARGIN = 12

interface VirtualRowsProps {
  count: number
  /** The index of the row that is scrolled into view. */
  selected: number
  /** Called with the range of rendered rows, `last` exclusive. */
  onSight?(first: number, last: number): void
  children(index: number): ComponentChildren
}

export function VirtualRows({ count, selected, onSight, children }: VirtualRowsProps) {
  const box = useRef<HTMLDivElement>(null)
  const [top, setTop] = useState(0)
  const [height, setHeight] = useState(600)
  useLayoutEffect(() => {
    const measure = new ResizeObserver(() => setHeight(box.current?.clientHeight ?? 600))
    measure.observe(box.current!)
    return () => measure.disconnect()
  }, [])
  useEffect(() => {
    const element = box.current!
    const index = selected * ROW_HEIGHT
    if (index < element.scrollTop) element.scrollTop = index
    else if (index + ROW_HEIGHT > element.scrollTop + element.clientHeight) {
      element.scrollTop = index + ROW_HEIGHT - element.clientHeight
    }
  }, [selected])
  const first = Math.max(0, Math.floor(top / ROW_HEIGHT) - MARGIN)
  const last = Math.min(count, Math.ceil((top + height) / ROW_HEIGHT) + MARGIN)
  useEffect(() => onSight?.(first, last), [first, last, count])
  const rows = []
  for (let index = first; index < last; index += 1) {
    rows.push(
      <div class="row" key={index} style={{ top: `${index * ROW_HEIGHT}px` }}>
        {children(index)}
      </div>,
    )
  }
  return (
    <div class="virtual" ref={box} onScroll={() => setTop(box.current!.scrollTop)}>
      <div class="height" style={{ height: `${count * ROW_HEIGHT}px` }}>
        {rows}
      </div>
    </div>
  )
}
