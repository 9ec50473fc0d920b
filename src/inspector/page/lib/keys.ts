/** Keyboard commands. Each view registers its keys, and the key `?` lists them. */
import { signal } from '@preact/signals'
import { useLayoutEffect } from 'preact/hooks'

interface KeyCommand {
  key: string
  help: string
  run(): void
}

/** The commands of the page and of the open view. */
export const commands = signal<readonly KeyCommand[]>([])

/**
 * Registers the commands of a view while it is open. They depend on the rendered data, so a layout effect replaces them
 * with each rendering: a key may be pressed before the next paint.
 */
export function useKeys(own: readonly KeyCommand[]): void {
  useLayoutEffect(() => {
    commands.value = [...commands.value, ...own]
    return () => {
      commands.value = commands.value.filter((command) => !own.includes(command))
    }
  })
}

addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return
  const { target } = event
  const types = target instanceof HTMLElement && /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)
  if (types && event.key !== 'Escape') return
  // The browser itself handles Enter on a link or button.
  if (event.key === 'Enter' && target instanceof HTMLElement && /^(A|BUTTON|SUMMARY)$/.test(target.tagName))
    return
  const command = commands.value.findLast(({ key }) => key === event.key)
  if (command === undefined) return
  event.preventDefault()
  command.run()
})
