/** The keyboard: each view names its keys, and `?` shows them. */
import { signal } from '@preact/signals'
import { useLayoutEffect } from 'preact/hooks'

interface KeyCommand {
  key: string
  help: string
  run(): void
}

/** What is shown by `?`: of the page and of the view that is open. */
export const commands = signal<readonly KeyCommand[]>([])

/**
 * What a command does follows from what its view showed when it was last rendered. So it takes the place of the one
 * before together with the view, not after the next painting: a key may come before that.
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
  // Enter on a link or button is the browser's.
  if (event.key === 'Enter' && target instanceof HTMLElement && /^(A|BUTTON|SUMMARY)$/.test(target.tagName))
    return
  const command = commands.value.findLast(({ key }) => key === event.key)
  if (command === undefined) return
  event.preventDefault()
  command.run()
})
