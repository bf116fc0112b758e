import http from 'k6/http';
export const options = { scenarios: { a: { executor: 'constant-arrival-rate', rate: 50, duration: '4s', preAllocatedVUs: 5 } },
 summaryTrendStats: ['avg','min','med','max','p(90)','p(95)','p(99)'],
 thresholds: { 'http_req_duration{rpc:eth_blockNumber}': ['p(95)<1000'], 'http_req_duration{rpc:eth_chainId}': ['p(95)<0.0001'], 'http_req_failed': ['rate<0.5'] } };
export default function () {
  const m = Math.random() < 0.5 ? 'eth_blockNumber' : 'eth_chainId';
  http.post('http://127.0.0.1:18599/', JSON.stringify({jsonrpc:'2.0',id:1,method:m,params:[]}), {tags:{rpc:m}, headers:{'content-type':'application/json'}});
}
