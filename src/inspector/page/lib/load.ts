/** Data of a view: loaded when it is shown, loaded anew when it should be, forgotten with it. */
import { useEffect, useState } from 'preact/hooks'
import { isUnreachable, returns } from './api.ts'

export interface LoadState<T> {
  value: T | undefined
  error: Error | undefined
  loading: boolean
}

/**
 * @param load is run anew when one of `keys` changes, and when a proxy that was away is back; what was there before stays until
 *   the new is
 */
export function useLoad<T>(load: (stop: AbortSignal) => Promise<T>, keys: readonly unknown[]): LoadState<T> {
  const [state, setState] = useState<LoadState<T>>({ value: undefined, error: undefined, loading: true })
  useEffect(() => {
    const controller = new AbortController()
    setState((before) => ({ ...before, loading: true }))
    load(controller.signal).then(
      (value) => {
        if (!controller.signal.aborted) setState({ value, error: undefined, loading: false })
      },
      (error: Error) => {
        if (controller.signal.aborted) return
        setState((before) =>
          isUnreachable.value && before.value !== undefined
            ? { ...before, loading: false }
            : { value: undefined, error, loading: false },
        )
      },
    )
    return () => controller.abort()
  }, [...keys, returns.value])
  return state
}

const TICK_MS = 2_000

/** Counts on, as a key of what is to be loaded anew every two seconds. */
export function useTick(): number {
  const [tick, setTick] = useState(0)
  useEffect(() => {
    const timer = setInterval(() => setTick((before) => before + 1), TICK_MS)
    return () => clearInterval(timer)
  }, [])
  return tick
}
