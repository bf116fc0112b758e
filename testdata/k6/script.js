// A small run of two methods against a local JSON-RPC server; its summary is kept as a fixture.
import http from 'k6/http';
import { check } from 'k6';

export const options = {
  scenarios: {
    steady: { executor: 'constant-arrival-rate', rate: 50, timeUnit: '1s', duration: '3s', preAllocatedVUs: 5, maxVUs: 5 },
  },
  thresholds: {
    http_req_failed: ['rate<0.01'],
    http_req_duration: ['p(95)<500', 'p(99)<0.001'],
    'http_req_duration{rpc:eth_call}': ['p(95)<500'],
    dropped_iterations: ['count<10'],
  },
};

const url = __ENV.TARGET;

export default function () {
  const method = __ITER % 2 === 0 ? 'eth_blockNumber' : 'eth_call';
  const body = JSON.stringify({ jsonrpc: '2.0', id: __ITER, method, params: [] });
  const res = http.post(url, body, { headers: { 'content-type': 'application/json' }, tags: { rpc: method } });
  check(res, { 'is a result': (r) => r.json('result') !== undefined });
}
