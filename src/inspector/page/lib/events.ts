/** Events of the proxy, on which views reload their data. */
import { useEffect, useRef } from 'preact/hooks'
import { getLines } from './api.ts'
import type { ProxyEvent } from './wire.ts'

/** Events arrive in bursts: a view is updated at most once in this time. */
const SETTLE_MS = 700
const RETRY_MS = 5_000

/**
 * Calls `notify` after events.
 * @param wanted selects events; default: all except pings
 */
export function useEvents(notify: () => void, wanted: (event: ProxyEvent) => boolean = () => true): void {
  const latest = useRef({ tell: notify, wanted })
  latest.current = { tell: notify, wanted }
  useEffect(() => {
    const controller = new AbortController()
    let timer: ReturnType<typeof setTimeout> | undefined
    const listen = async (): Promise<void> => {
      for await (const event of getLines<ProxyEvent>('events', controller.signal)) {
        if (event.type === 'ping' || !latest.current.wanted(event)) continue
        timer ??= setTimeout(() => {
          timer = undefined
          latest.current.tell()
        }, SETTLE_MS)
      }
    }
    // A database without a proxy has no events and responds with a status.
    const again = (error?: { status?: number }) => {
      if (!controller.signal.aborted && error?.status === undefined) retry = setTimeout(start, RETRY_MS)
    }
    let retry: ReturnType<typeof setTimeout> | undefined
    const start = () => void listen().then(() => again(), again)
    start()
    return () => {
      controller.abort()
      clearTimeout(timer)
      clearTimeout(retry)
    }
  }, [])
}
